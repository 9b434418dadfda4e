"""What `up` writes down of its processes, for `status`, and for the next `up` after a kill."""

import contextlib
import errno
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil

from stack.files import read_json, write_private

_SAME_BIRTH = 1.0
_POLL = 0.05
_BLOCK = 32 * 1024
"""the file is as large as that, or a multiple: on a full disk there is room in it for the next state"""


GONE = "it is gone, and its end is not written down yet"


class Condition(StrEnum):
    """How one process of the stack is."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass
class ProcessState:
    """One line of the status board."""

    name: str
    condition: Condition = Condition.STARTING
    pid: int | None = None
    born: float | None = None
    restarts: int = 0
    last_words: str = ""
    """why it ended the last time"""


def write(path: Path, processes: list[ProcessState]) -> None:
    """In one step; without room for a new file, in the place of the old one."""
    text = json.dumps([asdict(process) for process in processes], indent=2) + "\n"
    padded = text + " " * (-len(text.encode()) % _BLOCK)
    try:
        write_private(path, padded)
    except OSError:
        _overwrite(path, padded.encode())


def _overwrite(path: Path, content: bytes) -> None:
    """Only what fits in the blocks that the file has: more would leave half a state."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if len(content) > os.fstat(descriptor).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)


def read(path: Path) -> list[ProcessState]:
    written = read_json(path) or []
    return [ProcessState(**{**fields, "condition": Condition(fields["condition"])}) for fields in written]


def observed(path: Path) -> list[ProcessState]:
    """As written down, but a process that is gone is not told as running: what is written may be old."""
    return [process if _is_true(process) else _gone(process) for process in read(path)]


def _is_true(process: ProcessState) -> bool:
    return process.condition not in (Condition.RUNNING, Condition.STARTING) or process.pid is None or _lives(process)


def _gone(process: ProcessState) -> ProcessState:
    return replace(process, condition=Condition.RESTARTING, pid=None, born=None, last_words=process.last_words or GONE)


def birth(pid: int) -> float | None:
    """When the process with that number began: with it a number cannot be mistaken for another process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).create_time()
    return None


def end_leftovers(path: Path, *, patience: float = 3.0) -> None:
    """See the children of a killed `up` gone: they die by themselves, and are helped if they do not."""
    left = [process for process in read(path) if _lives(process)]
    deadline = time.monotonic() + patience
    while left and time.monotonic() < deadline:
        time.sleep(_POLL)
        left = [process for process in left if _lives(process)]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(process.pid).kill()


def _lives(process: ProcessState) -> bool:
    if process.pid is None or process.born is None:
        return False
    born = birth(process.pid)
    return born is not None and abs(born - process.born) < _SAME_BIRTH
