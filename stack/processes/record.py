"""The file in which `up` records its processes, for `status` and for the next `up` after a kill."""

import contextlib
import errno
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil

from nodesmith.runtime.process_identity import identity_of_process
from nodesmith.stack.files import read_json, write_private

_POLL = 0.05
_BLOCK = 32 * 1024
"""the file is padded to a multiple of this, so that the next state fits into it on a full disk"""


GONE = "it ended, and `up` has not recorded its exit yet"


class Condition(StrEnum):
    """The condition of one process of the stack."""

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
    born: str | None = None
    """boot and start of the process, independent of the clock"""
    restarts: int = 0
    last_words: str = ""
    """why it last ended"""


def write(path: Path, processes: list[ProcessState]) -> None:
    """Replace the file atomically; overwrite it in place when the disk has no space for a new one."""
    text = json.dumps([asdict(process) for process in processes], indent=2) + "\n"
    padded = text + " " * (-len(text.encode()) % _BLOCK)
    try:
        write_private(path, padded)
    except OSError:
        _overwrite(path, padded.encode())


def _overwrite(path: Path, content: bytes) -> None:
    """Write only what fits into the allocated blocks; more could leave a truncated state."""
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


def read_current(path: Path) -> list[ProcessState]:
    """Read the record and correct stale entries: a process that has ended is not reported as running."""
    return [process if _is_accurate(process) else _as_restarting(process) for process in read(path)]


def _is_accurate(process: ProcessState) -> bool:
    return process.condition not in (Condition.RUNNING, Condition.STARTING) or process.pid is None or _is_alive(process)


def _as_restarting(process: ProcessState) -> ProcessState:
    return replace(process, condition=Condition.RESTARTING, pid=None, born=None, last_words=process.last_words or GONE)


def end_leftovers(path: Path, *, patience: float = 3.0) -> None:
    """Wait for the children of a killed `up` to end; kill those that remain after `patience` seconds."""
    left = [process for process in read(path) if _is_alive(process)]
    deadline = time.monotonic() + patience
    while left and time.monotonic() < deadline:
        time.sleep(_POLL)
        left = [process for process in left if _is_alive(process)]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(process.pid).kill()


def _is_alive(process: ProcessState) -> bool:
    if process.pid is None or process.born is None:
        return False
    return identity_of_process(process.pid) == process.born
