"""One backend process: started so that it survives the agent, found again after a restart, stopped with its group."""

import asyncio
import contextlib
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field

from nodesmith.agent.run.confinement import Launch
from nodesmith.contracts.nats.loads import LoadOrder
from nodesmith.runtime.process_identity import boot_id, started_at

_POLL_S = 0.2
_KILL_S = 5.0
_SAME_START_S = 0.005


class ProcessRecord(BaseModel):
    """The stored record of a process: pid, start time and folder identify it after a restart."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str
    family: str
    backend: str = ""
    model_id: str = ""
    replica: int = 0
    version: str = ""
    folder: Path
    identity: str = ""
    """device and inode of the folder, to detect a replaced folder of the same name"""
    pid: int = 0
    started: float = 0.0
    """start time in seconds since that boot"""
    boot: str = ""
    host: str = ""
    port: int = 0
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    load: LoadOrder | None = None
    """of a replica of a model: with what it is started, whenever it is started"""
    arguments: tuple[str, ...] = ()
    """the deployment's arguments, with the paths of the model's files"""
    op_id: str = ""
    """the load that started it first"""

    @property
    def log_key(self) -> str:
        """Log name: one per version, so that overlapping versions have separate logs."""
        return f"{self.key}@{self.version}" if self.version else self.key

    @property
    def ready_within(self) -> float | None:
        """How many seconds a replica may take to get ready; None for other processes."""
        return self.load.spec.ready_within.total_seconds() if self.load is not None else None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def identity_of(folder: Path) -> str:
    """Return device and inode, or an empty string when the folder does not exist."""
    try:
        seen = folder.stat()
    except OSError:
        return ""
    return f"{seen.st_dev}:{seen.st_ino}"


class BackendProcess:
    """A process identified by pid and start time, so that a reused pid is never mistaken for it."""

    def __init__(self, pid: int, started: float) -> None:
        self.pid = pid
        self.started = started

    @classmethod
    def start(cls, launch: Launch, log: Path) -> "BackendProcess":
        """Start in a new session with output to a file, so that the end of the agent does not affect it."""
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            pid = os.posix_spawn(
                launch.argv[0],
                launch.argv,
                launch.environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                ],
                setsid=True,
            )
        finally:
            os.close(output)
        return cls(pid, started_at(pid))

    @classmethod
    def find(cls, record: ProcessRecord) -> "BackendProcess | None":
        """Return the recorded process if it still runs."""
        process = cls(record.pid, record.started)
        return process if record.pid and record.boot == boot_id() and process.is_alive() else None

    @classmethod
    def started_below(cls, folder: Path) -> "list[BackendProcess]":
        """List session leaders that `start` launched from that folder, including those without a record."""
        leaders = (pid for pid in psutil.pids() if _is_leader(pid))
        return [found for pid in leaders if (found := cls._if_started_below(pid, f"{folder}/")) is not None]

    @classmethod
    def _if_started_below(cls, pid: int, folder: str) -> "BackendProcess | None":
        try:
            leader = psutil.Process(pid)
            argv = leader.cmdline()
            is_ours = "--addr" in argv and any(path.startswith(folder) for path in (_working_folder(leader), *argv))
            return cls(pid, started_at(pid)) if is_ours else None
        except psutil.Error:
            return None

    def is_alive(self) -> bool:
        self._reap()
        started = started_at(self.pid)
        return started > 0 and abs(started - self.started) < _SAME_START_S

    def listens_on(self, port: int) -> bool:
        """Whether this process or a descendant listens on the port; True if the system denies the lookup."""
        try:
            leader = psutil.Process(self.pid)
            processes = [leader, *leader.children(recursive=True)]
            return any(_listens(each, port) for each in processes)
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True

    async def wait_ended(self) -> None:
        """Wait until the process ends, through a pidfd if possible, which also works for adopted processes."""
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
        """Send SIGTERM to the group, wait for the grace period, then SIGKILL; False when the process survives."""
        self._signal(signal.SIGTERM)
        if await self._ended_within(grace):
            self._signal(signal.SIGKILL)
            return True
        self._signal(signal.SIGKILL)
        return await self._ended_within(_KILL_S)

    def kill(self) -> None:
        """Send SIGKILL without waiting."""
        self._signal(signal.SIGKILL)

    async def _ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                await self.wait_ended()
        return not self.is_alive()

    def _signal(self, number: signal.Signals) -> None:
        """Signal the group, which may outlive its leader; never signal a reused pid."""
        if not self.is_alive() and _is_reused(self.pid):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def _working_folder(process: psutil.Process) -> str:
    """Empty if the path is too long for the kernel to tell: a backend may go down as deep as it likes."""
    try:
        return process.cwd()
    except OSError:
        return ""


def _is_leader(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def _listens(process: psutil.Process, port: int) -> bool:
    sockets = process.net_connections(kind="tcp")
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets)


def _is_reused(pid: int) -> bool:
    """Whether another process now has this pid; then the group is not ours either."""
    return psutil.pid_exists(pid)


async def _readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(handle, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(handle)
