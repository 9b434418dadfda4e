"""The backends that run on this node: started when asked, kept running, found again, stopped."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent import logs
from agent.durable import Disk
from agent.failures import OperationFailed
from agent.health import health_route, is_healthy
from agent.launch import Process, Record, identity_of
from agent.logs import LogRing
from agent.ports import Ports
from agent.running_files import RunningFiles

log = structlog.stdlib.get_logger(__name__)

_FIRST_PROBE_S = 0.05
_PROBE_EVERY_S = 0.5
_TAIL_LINES = 20
_FIRST_BACK_OFF_S = 1.0
_LONGEST_BACK_OFF_S = 60.0
_LIVED_WELL_S = 60.0

Live = Callable[[str], Path | None]
"""family -> the folder of the version that serves"""


class DidNotStart(Exception):
    """A process did not become healthy; the message has the end of its output."""


@dataclass(frozen=True)
class Rules:
    home: Path
    host: str
    health_timeout: float
    log_limit: int
    disk: Disk = field(default_factory=Disk)
    """for what is written down about processes"""

    def files(self) -> RunningFiles:
        return RunningFiles(self.home, self.disk)


class Keeper:
    """Keeps one process running; what it does is written down before anybody could need it."""

    def __init__(self, record: Record, rules: Rules, ports: Ports) -> None:
        self.record = record
        self.is_stopping = False
        self._rules = rules
        self._ports = ports
        self._files = rules.files()
        self._process: Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[bool] | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def ring(self) -> LogRing:
        return LogRing(self._rules.home / "logs", self.record.log_key, self._rules.log_limit)

    async def start(self) -> None:
        """Until it is healthy; then it is kept running. `DidNotStart` leaves nothing behind."""
        await self._launch()
        self._keeping = asyncio.create_task(self._keep(), name=f"keep-{self.record.key}")

    def adopt(self, process: Process) -> None:
        self._process = process
        self._ports.hold(self.record.port)
        self._keeping = asyncio.create_task(self._keep(), name=f"keep-{self.record.key}")

    def revive(self, leftover: Process | None) -> None:
        """It should run and does not, or not where it should: as if it had ended just now."""
        self._keeping = asyncio.create_task(self._keep(leftover), name=f"keep-{self.record.key}")

    async def stop(self, grace: float, *, remember: bool = False) -> bool:
        """False when it survives. `remember`: an agent that is killed right now starts it again later."""
        self.is_stopping = True
        await self._let_go()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(grace))
        gone = await asyncio.shield(self._ending)
        if gone and not remember:
            self._files.forget(self.record.key)
        self.is_stopping = gone
        if not gone:
            self._ending = None
        return gone

    def write_again(self) -> None:
        self._files.write(self.record)

    def let_go(self) -> None:
        """Stop watching; the process goes on."""
        if self._keeping is not None:
            self._keeping.cancel()

    async def _let_go(self) -> None:
        self.let_go()
        if self._keeping is not None:
            await asyncio.wait([self._keeping])

    async def _launch(self) -> None:
        """On another port, if somebody else was quicker on the one that was free a moment ago."""
        for tries_left in (2, 1, 0):
            port = self._ports.take(self.record.key)
            try:
                return await self._launch_on(port)
            except DidNotStart:
                if tries_left == 0 or self._ports.is_free(port):
                    raise
                log.warning("backend.port_was_taken", key=self.record.key, port=port)
        return None

    async def _launch_on(self, port: int) -> None:
        record = self.record
        address = f"{self._rules.host}:{port}"
        ring = self.ring()
        try:
            await asyncio.to_thread(logs.forget_others, ring, record.key)
            process = await _spawned(record.folder, address, ring.path)
        except BaseException:
            self._ports.release(port, record.key)
            raise
        self._process = process
        self.record = record.model_copy(
            update={
                "pid": process.pid,
                "started": process.started,
                "host": self._rules.host,
                "port": port,
                "identity": identity_of(record.folder),
            }
        )
        try:
            await asyncio.to_thread(self._files.write_pending, self.record)
            await self._healthy(process, port, ring)
            await asyncio.to_thread(self._files.write, self.record)
        except BaseException:
            await self._end(0.0)
            self._files.forget_pending(record.key)
            raise
        log.info("backend.started", key=record.key, address=address, pid=process.pid)

    async def _healthy(self, process: Process, port: int, ring: LogRing) -> None:
        deadline, pause = time.monotonic() + self._rules.health_timeout, _FIRST_PROBE_S
        route = await asyncio.to_thread(health_route, self.record.folder)
        while process.is_alive() and time.monotonic() < deadline:
            if await is_healthy(self._rules.host, port, route) and await asyncio.to_thread(process.listens_on, port):
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PROBE_EVERY_S)
        why = "was not healthy in time" if process.is_alive() else "ended at once"
        tail = await asyncio.to_thread(ring.tail, _TAIL_LINES)
        raise DidNotStart(f"{self.record.log_key} {why}. The end of its output:\n" + "\n".join(tail.lines))

    async def _keep(self, leftover: Process | None = None) -> None:
        """Start it again when it ends, later each time it ends soon."""
        if leftover is not None:
            await leftover.stop(0.0)
        pause = 0.0 if self._process is None else _FIRST_BACK_OFF_S
        while True:
            began = time.monotonic()
            if self._process is not None:
                await self._process.ended()
                self._ports.release(self.record.port, self.record.key)
                log.warning("backend.ended", key=self.record.key, pid=self.record.pid)
            pause = _FIRST_BACK_OFF_S if time.monotonic() - began > _LIVED_WELL_S else pause
            self._process = None
            await asyncio.sleep(pause)
            pause = min(max(pause * 2, _FIRST_BACK_OFF_S), _LONGEST_BACK_OFF_S)
            await self._try_again()

    async def _try_again(self) -> None:
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
    """All of them, by process key."""

    def __init__(self, rules: Rules, ports: Ports, live: Live) -> None:
        self._rules = rules
        self._ports = ports
        self._live = live
        self._keepers: dict[str, Keeper] = {}

    async def adopt(self) -> None:
        """What an earlier life of this agent has started: found running, or started again; nothing else goes on."""
        files = self._rules.files()
        wanted = await asyncio.to_thread(files.everything)
        for found in await asyncio.to_thread(Process.started_below, self._rules.home.absolute() / "backends"):
            if found.pid not in {record.pid for record in wanted}:
                log.warning("backend.unknown_process_killed", pid=found.pid)
                found.kill()
        for record in await asyncio.to_thread(files.pending):
            if (pending := Process.find(record)) is not None:
                pending.kill()
            files.forget_pending(record.key)
        for record in wanted:
            self.take_up(record)

    def everything(self) -> list[Keeper]:
        return list(self._keepers.values())

    def of(self, family: str) -> list[Keeper]:
        return [keeper for keeper in self._keepers.values() if keeper.record.family == family]

    def get(self, key: str) -> Keeper | None:
        return self._keepers.get(key)

    def serving(self) -> list[Keeper]:
        """Alive, and not about to end."""
        return [keeper for keeper in self._keepers.values() if keeper.is_alive and not keeper.is_stopping]

    async def start(self, record: Record) -> Keeper:
        """One more process; whoever had the key before is replaced only by one that is ready."""
        keeper = Keeper(record, self._rules, self._ports)
        await keeper.start()
        self._keepers[record.key] = keeper
        return keeper

    def take_back(self, keeper: Keeper) -> bool:
        """Let an old process have its key again, after a new one failed beside it; False when it has ended."""
        if keeper.is_stopping or not keeper.is_alive:
            return False
        self._keepers[keeper.record.key] = keeper
        try:
            keeper.write_again()
        except OSError:  # an agent that is killed now starts it anew
            log.exception("backend.not_written", key=keeper.record.key)
        return True

    async def stop(self, keepers: list[Keeper], grace: float, *, remember: bool = False) -> list[Keeper]:
        """All at once; returns those that survive."""
        stopping: list[Awaitable[bool]] = [keeper.stop(grace, remember=remember) for keeper in keepers]
        gone = await asyncio.gather(*stopping)
        for keeper, is_gone in zip(keepers, gone, strict=True):
            if is_gone and self._keepers.get(keeper.record.key) is keeper:
                del self._keepers[keeper.record.key]
        return [keeper for keeper, is_gone in zip(keepers, gone, strict=True) if not is_gone]

    def turn_logs(self) -> None:
        for keeper in self.everything():
            keeper.ring().turn()

    def let_go(self) -> None:
        """The agent ends, they go on."""
        for keeper in self.everything():
            keeper.let_go()

    def take_up(self, record: Record) -> None:
        """Never trust a process whose folder was replaced under it."""
        found = Process.find(record)
        is_same_folder = identity_of(record.folder) == record.identity
        if found is not None and is_same_folder:
            keeper = Keeper(record, self._rules, self._ports)
            keeper.adopt(found)
            log.info("backend.adopted", key=record.key, pid=record.pid, address=record.address)
        else:
            folder = self._live(record.family)
            keeper = Keeper(record.model_copy(update={"folder": folder or record.folder}), self._rules, self._ports)
            keeper.revive(leftover=found)
        self._keepers[record.key] = keeper


async def _spawned(folder: Path, address: str, output: Path) -> Process:
    """Whoever is cancelled meanwhile leaves no process behind."""
    spawning = asyncio.ensure_future(asyncio.to_thread(Process.start, folder, address, output))
    try:
        return await asyncio.shield(spawning)
    except asyncio.CancelledError:
        (await spawning).kill()
        raise
