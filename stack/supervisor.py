"""Keeps the processes of the stack alive: start in order, restart what dies, stop in reverse order."""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from stack import record, servers
from stack.child import Child
from stack.errors import StackError
from stack.record import Condition, ProcessState
from stack.servers import Server

TELL_AGAIN = 1.0
"""how often a state is told again that could not be written down"""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
_STEADY_AFTER = 30.0
"""a process that ran this long begins again with the shortest pause"""


def pauses() -> Iterator[float]:
    """Seconds to wait before each restart in a row: 0.5, 1, 2, 4, 8, 10, 10 ..."""
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_PAUSE)


class Keeper:
    """Keeps one process alive."""

    def __init__(self, server: Server, changed: Callable[[], None], *, stop_patience: float) -> None:
        self._server = server
        self._changed = changed
        self._stop_patience = stop_patience
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self.state = ProcessState(server.name)

    async def start(self) -> None:
        """The first start: whatever is wrong is the caller's to hear."""
        await self._launch(servers.PATIENCE)
        self._task = asyncio.create_task(self._keep(), name=f"keep {self._server.name}")

    async def stop(self) -> None:
        self._show(Condition.STOPPING)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._child is not None:
            await self._child.stop(self._stop_patience)
        self.state.pid = self.state.born = None
        self._show(Condition.STOPPED)

    async def _keep(self) -> None:
        waits = pauses()
        while True:
            began = time.monotonic()
            await self._until_dead()
            if time.monotonic() - began > _STEADY_AFTER:
                waits = pauses()
            await asyncio.sleep(next(waits))
            try:
                # for ever: a process that waits for another one, or recovers, is not helped by being killed
                await self._launch(math.inf)
            except (StackError, OSError) as error:
                self.state.last_words = str(error)

    async def _launch(self, patience: float) -> None:
        self._child = await servers.start(self._server, patience=patience, started=self._started)
        self._show(Condition.RUNNING)

    def _started(self, child: Child) -> None:
        self.state.pid, self.state.born = child.pid, record.birth(child.pid)
        self._show(Condition.STARTING)

    async def _until_dead(self) -> None:
        if self._child is not None:
            code = await self._child.wait()
            self.state.last_words = _obituary(code, self._child)
        self._child = None
        self.state.pid = self.state.born = None
        self.state.restarts += 1
        self._show(Condition.RESTARTING)

    def _show(self, condition: Condition) -> None:
        self.state.condition = condition
        self._changed()


class Supervisor:
    """The processes, in groups: what was started last is stopped first."""

    def __init__(self, changed: Callable[[list[ProcessState]], None], *, stop_patience: float = 10.0) -> None:
        self._changed = changed
        self._stop_patience = stop_patience
        self._groups: list[list[Keeper]] = []
        self._telling_again: asyncio.TimerHandle | None = None

    @property
    def states(self) -> list[ProcessState]:
        return [keeper.state for group in self._groups for keeper in group]

    async def start(
        self, first: Sequence[Server], beside: Sequence[Server] = (), after_first: Sequence[Server] = ()
    ) -> None:
        """Start `first` and `beside` together, `after_first` when the first serve; return when all serve.

        One error ends the others and is raised.
        """
        foremost, together, later = groups = [
            [self._keeper(server) for server in group] for group in (first, beside, after_first)
        ]
        self._groups += groups
        try:
            async with asyncio.TaskGroup() as tasks:
                for keeper in together:
                    tasks.create_task(keeper.start())
                await asyncio.gather(*(keeper.start() for keeper in foremost))
                for keeper in later:
                    tasks.create_task(keeper.start())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def stop(self) -> None:
        """Stop all, the last group first."""
        for group in reversed(self._groups):
            await asyncio.gather(*(keeper.stop() for keeper in group))
        self._groups.clear()
        self._tell_again_later(is_needed=False)

    def _keeper(self, server: Server) -> Keeper:
        return Keeper(server, self._tell, stop_patience=self._stop_patience)

    def _tell(self) -> None:
        """A full disk must not end the keeping of processes: what could not be written is written later."""
        try:
            self._changed(self.states)
        except OSError:
            self._tell_again_later(is_needed=True)
        else:
            self._tell_again_later(is_needed=False)

    def _tell_again_later(self, *, is_needed: bool) -> None:
        if self._telling_again is not None:
            self._telling_again.cancel()
        loop = asyncio.get_running_loop()
        self._telling_again = loop.call_later(TELL_AGAIN, self._tell) if is_needed else None


def _obituary(code: int, child: Child) -> str:
    """Why it ended: who was killed had no time to say it."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}: {child.last_words()}"
