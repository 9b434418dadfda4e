"""Allows one `up` per home: the kernel holds the lock, and releases it however its holder ends."""

import fcntl
import os
import time
from pathlib import Path

from nodesmith.stack.errors import StackError

_TRIES = 20
_PAUSE = 0.02


class HomeLock:
    """The lock on a home, held from `acquire` to `release`; the file contains the holder's pid."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path) -> "HomeLock":
        for _ in range(_TRIES):  # `status` and `down` hold the lock briefly while they check it
            descriptor = _try_lock(path)
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
    """Return the pid of the process that holds the lock; None when it is free."""
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


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # the previous holder may have removed the file between open and flock
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
