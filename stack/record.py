"""What `up` writes down of its processes, for `status`, and for the next `up` after a kill."""

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from stack.files import read_json, write_private

_SAME_BIRTH = 1.0
_POLL = 0.05


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
    write_private(path, json.dumps([asdict(process) for process in processes], indent=2) + "\n")


def read(path: Path) -> list[ProcessState]:
    written = read_json(path) or []
    return [ProcessState(**{**fields, "condition": Condition(fields["condition"])}) for fields in written]


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
