"""Files that are there whole or not at all, and readable by their owner only."""

import json
import os
from pathlib import Path
from typing import Any

from stack.errors import StackError


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, mode 0600, on disk before it has its name."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # on a full disk half of it is there
        raise


def read_json(path: Path) -> Any:
    """What `up` has written down; None when it has not."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise StackError(f"{path} is damaged.", remedy="Remove it: the next `nodesmith up` writes it anew.") from None
