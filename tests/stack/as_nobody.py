"""Runs a command as the user `nobody`: `python -m tests.stack.as_nobody COMMAND ...`; for tests under root.

If the interpreter or the project is below a private folder (root's home), a private mount namespace makes it
accessible; nothing changes outside of this process.
"""

import ctypes
import os
import stat
import sys
import tempfile
from pathlib import Path

CLONE_NEWNS, MS_REC_PRIVATE, MS_BIND = 0x20000, 0x44000, 0x1000
NOBODY = 65534


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(CLONE_NEWNS) == 0
    assert libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0
    needed = {str(Path(path).resolve()) for path in (sys.base_prefix, sys.prefix, Path(__file__).parents[2])}
    hidden = {path: barrier for path in needed if (barrier := _outermost_private_folder(Path(path))) is not None}
    sources = {path: os.open(path, os.O_PATH) for path in hidden}
    for barrier in set(hidden.values()):
        assert libc.mount(b"tmpfs", bytes(barrier), b"tmpfs", 0, b"mode=0755") == 0
    for path, source in sources.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        assert libc.mount(f"/proc/self/fd/{source}".encode(), path.encode(), None, MS_BIND, None) == 0
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.chdir(tempfile.gettempdir())
    os.environ["HOME"] = "/nonexistent"
    os.execv(sys.argv[1], sys.argv[1:])


def _outermost_private_folder(path: Path) -> Path | None:
    """Return the outermost parent that other users cannot enter."""
    private = (folder for folder in reversed(path.parents) if not folder.stat().st_mode & stat.S_IXOTH)
    return next(private, None)


main()
