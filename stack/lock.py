"""One `up` for each home: the lock is the kernel's, so it is gone when its holder is, however that ended."""

import fcntl
import os
import time
from pathlib import Path

from stack.errors import StackError

_TRIES = 20
_PAUSE = 0.02


class HomeLock:
    """Held from `acquire` to `release`; the file names the process that holds it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path) -> "HomeLock":
        for _ in range(_TRIES):  # `status` and `down` hold it for a moment when they look
            descriptor = _try(path)
            if descriptor is not None:
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                return cls(path, descriptor)
            time.sleep(_PAUSE)
        raise StackError(
            f"Nodesmith already runs on {path.parent} (pid {holder(path)}).",
            remedy="Look at it with `nodesmith status`, stop it with `nodesmith down`, or choose another --home.",
        )

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def holder(path: Path) -> int | None:
    """The process that holds the lock; None when nobody does."""
    for _ in range(_TRIES):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if _flock(descriptor, fcntl.LOCK_SH):
                return None
            written = os.pread(descriptor, 32, 0).strip()
        finally:
            os.close(descriptor)
        if written:
            return int(written)
        time.sleep(_PAUSE)
    return None


def _try(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # the file we locked may have been removed by its last holder in between
    if _flock(descriptor, fcntl.LOCK_EX) and path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
        return descriptor
    os.close(descriptor)
    return None


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
