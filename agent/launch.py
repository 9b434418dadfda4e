"""One process of a backend: started so that it outlives the agent, or found again; stopped with all its kin."""

import asyncio
import contextlib
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field

_POLL_S = 0.2
_KILL_S = 5.0
_SAME_START_S = 0.05
_SCRIPT = 'cd "$0" && exec ./run.sh "$@"'


class Record(BaseModel):
    """A process as it is written down: pid, start time and folder tell whether it is still the same one."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str
    family: str
    backend: str = ""
    model_id: str = ""
    replica: int = 0
    version: str = ""
    folder: Path
    identity: str = ""
    """device and inode of the folder: another one under the same name is another folder"""
    pid: int = 0
    started: float = 0.0
    host: str = ""
    port: int = 0
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @property
    def log_key(self) -> str:
        """Each version writes for itself, so that two that overlap can be told apart."""
        return f"{self.key}@{self.version}" if self.version else self.key

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def identity_of(folder: Path) -> str:
    """Empty when there is no such folder any more."""
    try:
        seen = folder.stat()
    except OSError:
        return ""
    return f"{seen.st_dev}:{seen.st_ino}"


class Process:
    """A pid that is certainly the one we mean."""

    def __init__(self, pid: int, started: float) -> None:
        self.pid = pid
        self.started = started

    @classmethod
    def start(cls, folder: Path, address: str, log: Path) -> "Process":
        """In a session of its own, writing to a file: neither our end nor a closed pipe reaches it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NODESMITH_")}
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            pid = os.posix_spawn(
                "/bin/sh",
                ["/bin/sh", "-c", _SCRIPT, str(folder), "--addr", address],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                ],
                setsid=True,
            )
        finally:
            os.close(output)
        return cls(pid, psutil.Process(pid).create_time())

    @classmethod
    def find(cls, record: Record) -> "Process | None":
        """The process of an earlier life of this agent, if it is still that one."""
        process = cls(record.pid, record.started)
        return process if record.pid and process.is_alive() else None

    @classmethod
    def started_below(cls, folder: Path) -> "list[Process]":
        """Session leaders that `start` launched from that folder, including those without a record."""
        leaders = (pid for pid in psutil.pids() if _is_leader(pid))
        return [found for pid in leaders if (found := cls._if_started_below(pid, f"{folder}/")) is not None]

    @classmethod
    def _if_started_below(cls, pid: int, folder: str) -> "Process | None":
        try:
            leader = psutil.Process(pid)
            words = leader.cmdline()
            is_ours = "--addr" in words and any(place.startswith(folder) for place in (leader.cwd(), *words))
            return cls(pid, leader.create_time()) if is_ours else None
        except psutil.Error:
            return None

    def is_alive(self) -> bool:
        self._reap()
        try:
            found = psutil.Process(self.pid)
            same = abs(found.create_time() - self.started) < _SAME_START_S
            return same and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def listens_on(self, port: int) -> bool:
        """Whether it is really this process, or kin of it, that answers there; true when we may not look."""
        try:
            leader = psutil.Process(self.pid)
            kin = [leader, *leader.children(recursive=True)]
            return any(_listens(each, port) for each in kin)
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True

    async def ended(self) -> None:
        """Until it is over; the kernel tells, whoever its parent is."""
        try:
            handle = os.pidfd_open(self.pid)
        except (OSError, AttributeError):
            handle = -1
        try:
            while self.is_alive():
                await _readable(handle) if handle >= 0 else await asyncio.sleep(_POLL_S)
        finally:
            if handle >= 0:
                os.close(handle)

    async def stop(self, grace: float) -> bool:
        """SIGTERM to the whole group, time to finish, then SIGKILL; False when something survives even that."""
        self._signal(signal.SIGTERM)
        if await self._gone_within(grace):
            self._signal(signal.SIGKILL)
            return True
        self._signal(signal.SIGKILL)
        return await self._gone_within(_KILL_S)

    def kill(self) -> None:
        """At once, and without waiting for it."""
        self._signal(signal.SIGKILL)

    async def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                await self.ended()
        return not self.is_alive()

    def _signal(self, number: signal.Signals) -> None:
        """The group outlives its leader; a pid that was given to somebody else is never signalled."""
        if not self.is_alive() and _is_foreign(self.pid):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def _is_leader(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def _listens(process: psutil.Process, port: int) -> bool:
    sockets = process.net_connections(kind="tcp")
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets)


def _is_foreign(pid: int) -> bool:
    """Whether another process lives under that pid now: then its group is not ours either."""
    return psutil.pid_exists(pid)


async def _readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(handle, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(handle)
