"""Writes files atomically, readable by their owner only."""

import json
import os
from pathlib import Path
from typing import Any

from nodesmith.stack.errors import StackError


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically with mode 0600: write and sync a temporary file, then rename it."""
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
        fresh.unlink(missing_ok=True)  # a full disk leaves a truncated file
        raise


def read_json(path: Path) -> Any:
    """Read a file that `up` wrote; None when it does not exist."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise StackError(f"{path} is damaged.", remedy="Remove it: the next `nodesmith up` writes it again.") from None
