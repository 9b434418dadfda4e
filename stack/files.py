"""Files that are there whole or not at all, and readable by their owner only."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, mode 0600, on disk before it has its name."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
