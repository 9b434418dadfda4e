"""Supervises backend processes: starts, restarts, adopts after an agent restart, and stops them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from nodesmith.agent.disk.durable_files import Disk
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.run import logs
from nodesmith.agent.run.backend_process import BackendProcess, ProcessRecord, identity_of
from nodesmith.agent.run.confinement import Confinement
from nodesmith.agent.run.health_check import health_route, is_healthy, is_ready
from nodesmith.agent.run.logs import LogRing
from nodesmith.agent.run.process_records import ProcessRecords
from nodesmith.agent.run.tcp_ports import Ports
from nodesmith.agent.threads import run_to_end
from nodesmith.runtime.process_identity import boot_id

log = structlog.stdlib.get_logger(__name__)

_FIRST_PROBE_S = 0.05
_PROBE_EVERY_S = 0.5
_TAIL_LINES = 20
_FIRST_BACK_OFF_S = 1.0
_MAX_BACK_OFF_S = 60.0
_STABLE_AFTER_S = 60.0

Live = Callable[[str], Path | None]
"""family -> folder of the current version"""
OnChange = Callable[[], None]


class DidNotStart(Exception):
    """A process did not become healthy; the message contains the end of its output."""


@dataclass(frozen=True)
class SupervisorRules:
    home: Path
    host: str
    health_timeout: float
    log_limit: int
    confinement: Confinement
    disk: Disk = field(default_factory=Disk)
    """for the records of processes"""

    def process_records(self) -> ProcessRecords:
        return ProcessRecords(self.home, self.disk)


class ProcessKeeper:
    """Keeps one process running; writes its record before any client can depend on it."""

    def __init__(
        self, record: ProcessRecord, rules: SupervisorRules, ports: Ports, on_change: OnChange = lambda: None
    ) -> None:
        """`on_change` is called when it gets ready, and when it ends."""
        self.record = record
        self.is_stopping = False
        self.is_ready = False
        """false from the end of the process until it was started again and is healthy"""
        self._on_change = on_change
        self._rules = rules
        self._ports = ports
        self._records = rules.process_records()
        self._process: BackendProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[bool] | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def ring(self) -> LogRing:
        return LogRing(self._rules.home / "logs", self.record.log_key, self._rules.log_limit)

    async def start(self, on_launched: OnChange = lambda: None) -> None:
        """Start, wait until healthy, then keep it running. On `DidNotStart` nothing is left behind."""
        await self._launch(on_launched)
        self._keeping = asyncio.create_task(self._keep_running(), name=f"keep-{self.record.key}")

    def adopt(self, process: BackendProcess) -> None:
        self._process = process
        self.is_ready = True
        self._ports.hold(self.record.port)
        self._keeping = asyncio.create_task(self._keep_running(), name=f"keep-{self.record.key}")

    def restart(self, leftover: BackendProcess | None) -> None:
        """Start the process again in the background, after killing a leftover that runs from a wrong folder."""
        self._keeping = asyncio.create_task(self._keep_running(leftover), name=f"keep-{self.record.key}")

    async def stop(self, grace: float, *, keep_record: bool = False) -> bool:
        """Stop the process; False when it survives. `keep_record`: a restarted agent would start it again."""
        self.is_stopping = True
        self._on_change()
        await self._stop_watching()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(grace))
        gone = await asyncio.shield(self._ending)
        if gone and not keep_record:
            self._records.forget(self.record.key)
        self.is_stopping = gone
        if not gone:
            self._ending = None
        return gone

    def rewrite_record(self) -> None:
        self._records.write(self.record)

    def detach(self) -> None:
        """Stop watching; the process keeps running."""
        if self._keeping is not None:
            self._keeping.cancel()

    async def _stop_watching(self) -> None:
        self.detach()
        if self._keeping is not None:
            await asyncio.wait([self._keeping])

    async def _launch(self, on_launched: OnChange = lambda: None) -> None:
        """Launch, on another port if a different program has taken the first one meanwhile."""
        for tries_left in (2, 1, 0):
            port = self._ports.acquire(self.record.key)
            try:
                return await self._launch_on(port, on_launched)
            except DidNotStart:
                if tries_left == 0 or self._ports.is_free(port):
                    raise
                log.warning("backend.port_was_taken", key=self.record.key, port=port)
        return None

    async def _launch_on(self, port: int, on_launched: OnChange) -> None:
        record = self.record
        address = f"{self._rules.host}:{port}"
        ring = self.ring()
        try:
            await asyncio.to_thread(logs.forget_others, ring, record.key)
            process = await _spawn(self._rules.confinement, record, address, ring.path)
        except BaseException:
            self._ports.release(port, record.key)
            raise
        self._process = process
        self.record = record.model_copy(
            update={
                "pid": process.pid,
                "started": process.started,
                "boot": boot_id(),
                "host": self._rules.host,
                "port": port,
                "identity": identity_of(record.folder),
            }
        )
        try:
            await run_to_end(self._records.write_pending, self.record)
            on_launched()
            await self._wait_until_healthy(process, port, ring)
            await run_to_end(self._records.write, self.record)
        except BaseException:
            await self._end(0.0)
            self._records.forget_pending(record.key)
            raise
        log.info("backend.started", key=record.key, address=address, pid=process.pid)
        self.is_ready = True
        self._on_change()

    async def _wait_until_healthy(self, process: BackendProcess, port: int, ring: LogRing) -> None:
        within = self.record.ready_within or self._rules.health_timeout
        deadline, pause = time.monotonic() + within, _FIRST_PROBE_S
        route = await asyncio.to_thread(health_route, self.record.folder)
        while process.is_alive() and time.monotonic() < deadline:
            if await self._is_healthy(port, route) and await asyncio.to_thread(process.listens_on, port):
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PROBE_EVERY_S)
        why = _why_late(self.record, within) if process.is_alive() else "ended during start"
        tail = await asyncio.to_thread(ring.tail, _TAIL_LINES)
        raise DidNotStart(f"{self.record.log_key} {why}. The end of its output:\n" + "\n".join(tail.lines))

    async def _is_healthy(self, port: int, route: str | None) -> bool:
        if self.record.load is not None:
            return await is_ready(self._rules.host, port, self.record.load.ready_path)
        return await is_healthy(self._rules.host, port, route)

    async def _keep_running(self, leftover: BackendProcess | None = None) -> None:
        """Restart the process whenever it ends, with back-off; a cancel stops it even if a launch fails then."""
        task = asyncio.current_task()
        if leftover is not None:
            await leftover.stop(0.0)
        pause = 0.0 if self._process is None else _FIRST_BACK_OFF_S
        while task is not None and not task.cancelling():
            began = time.monotonic()
            if self._process is not None:
                await self._process.wait_ended()
                self.is_ready = False
                self._on_change()
                self._ports.release(self.record.port, self.record.key)
                log.warning("backend.ended", key=self.record.key, pid=self.record.pid)
            pause = _FIRST_BACK_OFF_S if time.monotonic() - began > _STABLE_AFTER_S else pause
            self._process = None
            await asyncio.sleep(pause)
            pause = min(max(pause * 2, _FIRST_BACK_OFF_S), _MAX_BACK_OFF_S)
            await self._relaunch()

    async def _relaunch(self) -> None:
        wanted = self.record
        try:
            await self._launch()
        except (DidNotStart, OperationFailed, OSError) as error:
            log.warning("backend.did_not_start", key=wanted.key, error=str(error))
            self.record = wanted

    async def _end(self, grace: float) -> bool:
        if self._process is None:
            return True
        gone = await self._process.stop(grace)
        if gone:
            self._ports.release(self.record.port, self.record.key)
            self._process = None
        return gone


class Supervisor:
    """All process keepers of this node, by process key."""

    def __init__(self, rules: SupervisorRules, ports: Ports, live: Live) -> None:
        self._rules = rules
        self._ports = ports
        self._live = live
        self.on_change: OnChange = lambda: None
        """called when a process gets ready or ends"""
        self._keepers: dict[str, ProcessKeeper] = {}

    async def adopt(self) -> None:
        """After a restart: adopt or restart recorded processes, and kill all other processes of this agent."""
        process_records = self._rules.process_records()
        wanted = await asyncio.to_thread(process_records.everything)
        for found in await asyncio.to_thread(BackendProcess.started_below, self._rules.home.absolute() / "backends"):
            if found.pid not in {record.pid for record in wanted}:
                log.warning("backend.unknown_process_killed", pid=found.pid)
                found.kill()
        for record in await asyncio.to_thread(process_records.pending):
            if (pending := BackendProcess.find(record)) is not None:
                pending.kill()
            process_records.forget_pending(record.key)
        for record in wanted:
            self.adopt_or_restart(record)

    def everything(self) -> list[ProcessKeeper]:
        return list(self._keepers.values())

    def of(self, family: str) -> list[ProcessKeeper]:
        return [keeper for keeper in self._keepers.values() if keeper.record.family == family]

    def get(self, key: str) -> ProcessKeeper | None:
        return self._keepers.get(key)

    def serving(self) -> list[ProcessKeeper]:
        """Return the processes that run and are not being stopped."""
        return [keeper for keeper in self._keepers.values() if keeper.is_alive and not keeper.is_stopping]

    async def start(self, record: ProcessRecord, on_launched: OnChange = lambda: None) -> ProcessKeeper:
        """Start a process; it replaces the previous holder of its key only once it is healthy."""
        keeper = self._keeper(record)
        await keeper.start(on_launched)
        self._keepers[record.key] = keeper
        self.on_change()
        return keeper

    def _keeper(self, record: ProcessRecord) -> ProcessKeeper:
        return ProcessKeeper(record, self._rules, self._ports, self._changed)

    def _changed(self) -> None:
        self.on_change()

    def reinstate(self, keeper: ProcessKeeper) -> bool:
        """Give an old process its key again after the new one failed; False when the old one has ended."""
        if keeper.is_stopping or not keeper.is_alive:
            return False
        self._keepers[keeper.record.key] = keeper
        try:
            keeper.rewrite_record()
        except OSError:  # if the agent is killed now, its next start restarts the process
            log.exception("backend.not_written", key=keeper.record.key)
        return True

    async def stop(
        self, keepers: list[ProcessKeeper], grace: float, *, keep_record: bool = False
    ) -> list[ProcessKeeper]:
        """Stop all concurrently; return those that survive."""
        stopping: list[Awaitable[bool]] = [keeper.stop(grace, keep_record=keep_record) for keeper in keepers]
        gone = await asyncio.gather(*stopping)
        for keeper, is_gone in zip(keepers, gone, strict=True):
            if is_gone and self._keepers.get(keeper.record.key) is keeper:
                del self._keepers[keeper.record.key]
        self.on_change()
        return [keeper for keeper, is_gone in zip(keepers, gone, strict=True) if not is_gone]

    def rotate_logs(self) -> None:
        for keeper in self.everything():
            keeper.ring().rotate()

    def detach(self) -> None:
        """Stop watching all processes; they keep running after the agent ends."""
        for keeper in self.everything():
            keeper.detach()

    def adopt_or_restart(self, record: ProcessRecord) -> None:
        """Adopt a recorded process, or restart it if it ended or its folder was replaced."""
        found = BackendProcess.find(record)
        is_same_folder = identity_of(record.folder) == record.identity
        if found is not None and is_same_folder:
            keeper = self._keeper(record)
            keeper.adopt(found)
            log.info("backend.adopted", key=record.key, pid=record.pid, address=record.address)
        else:
            folder = self._live(record.family)
            keeper = self._keeper(record.model_copy(update={"folder": folder or record.folder}))
            keeper.restart(leftover=found)
        self._keepers[record.key] = keeper


def _why_late(record: ProcessRecord, within: float) -> str:
    if record.load is None:
        return "was not healthy in time"
    size, path = record.load.spec.size, record.load.ready_path
    return f"did not answer {path} with 2xx within {within:.0f} s ({size} bytes of files; `ready_seconds` changes it)"


async def _spawn(confinement: Confinement, record: ProcessRecord, address: str, output: Path) -> BackendProcess:
    """Spawn in a thread; if the caller is cancelled, kill the spawned process and stay cancelled."""

    def start() -> BackendProcess:
        environment = record.load.environment if record.load is not None else {}
        launch = confinement.launch(record.folder, address, record.arguments, environment)
        return BackendProcess.start(launch, output)

    spawning = asyncio.ensure_future(asyncio.to_thread(start))
    try:
        return await asyncio.shield(spawning)
    except asyncio.CancelledError:
        await asyncio.wait([spawning])
        if spawning.exception() is None:
            spawning.result().kill()
        raise
