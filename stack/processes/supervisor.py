"""Keeps the processes of the stack alive: start in order, restart what dies, stop in reverse order."""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from nodesmith.runtime.process_identity import identity_of_process
from nodesmith.stack.errors import StackError
from nodesmith.stack.processes.child import Child
from nodesmith.stack.processes.record import Condition, ProcessState
from nodesmith.stack.servers import embedded
from nodesmith.stack.servers.embedded import Server

REPORT_RETRY_S = 1.0
"""seconds until a report that could not be written is retried"""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
_STEADY_AFTER = 30.0
"""a process that ran this long restarts with the shortest back-off"""


def back_off() -> Iterator[float]:
    """Yield the seconds to wait before each successive restart: 0.5, 1, 2, 4, 8, 10, 10 ..."""
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_PAUSE)


class ChildKeeper:
    """Starts one process and restarts it whenever it ends."""

    def __init__(self, server: Server, changed: Callable[[], None], *, stop_patience: float) -> None:
        self._server = server
        self._changed = changed
        self._stop_patience = stop_patience
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self.state = ProcessState(server.name)

    async def start(self) -> None:
        """Start for the first time; errors are raised to the caller."""
        await self._launch(embedded.PATIENCE)
        self._task = asyncio.create_task(self._restart_forever(), name=f"keep {self._server.name}")

    async def stop(self) -> None:
        self._set_condition(Condition.STOPPING)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._child is not None:
            await self._child.stop(self._stop_patience)
        self.state.pid = self.state.born = None
        self._set_condition(Condition.STOPPED)

    async def _restart_forever(self) -> None:
        waits = back_off()
        while True:
            began = time.monotonic()
            await self._wait_for_exit()
            if time.monotonic() - began > _STEADY_AFTER:
                waits = back_off()
            await asyncio.sleep(next(waits))
            try:
                # no deadline: killing a process that waits for another one, or recovers, would not help
                await self._launch(math.inf)
            except (StackError, OSError) as error:
                self.state.last_words = str(error)

    async def _launch(self, patience: float) -> None:
        self._child = await embedded.start(self._server, patience=patience, started=self._started)
        self._set_condition(Condition.RUNNING)

    def _started(self, child: Child) -> None:
        self.state.pid, self.state.born = child.pid, identity_of_process(child.pid)
        self._set_condition(Condition.STARTING)

    async def _wait_for_exit(self) -> None:
        if self._child is not None:
            code = await self._child.wait()
            self.state.last_words = _describe_exit(code, self._child)
        self._child = None
        self.state.pid = self.state.born = None
        self.state.restarts += 1
        self._set_condition(Condition.RESTARTING)

    def _set_condition(self, condition: Condition) -> None:
        self.state.condition = condition
        self._changed()


class Supervisor:
    """Starts and stops the processes in groups: the group started last is stopped first."""

    def __init__(self, changed: Callable[[list[ProcessState]], None], *, stop_patience: float = 10.0) -> None:
        self._changed = changed
        self._stop_patience = stop_patience
        self._groups: list[list[ChildKeeper]] = []
        self._pending_report: asyncio.TimerHandle | None = None

    @property
    def states(self) -> list[ProcessState]:
        return [keeper.state for group in self._groups for keeper in group]

    async def start(
        self, first: Sequence[Server], beside: Sequence[Server] = (), after_first: Sequence[Server] = ()
    ) -> None:
        """Start `first` and `beside` together, `after_first` once `first` are ready; return when all are ready.

        The first error cancels the other starts and is raised.
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
        """Stop all processes, the last group first."""
        for group in reversed(self._groups):
            await asyncio.gather(*(keeper.stop() for keeper in group))
        self._groups.clear()
        self._schedule_report(is_needed=False)

    def _keeper(self, server: Server) -> ChildKeeper:
        return ChildKeeper(server, self._report, stop_patience=self._stop_patience)

    def _report(self) -> None:
        """Report the states; on a full disk retry later instead of ending the supervision."""
        try:
            self._changed(self.states)
        except OSError:
            self._schedule_report(is_needed=True)
        else:
            self._schedule_report(is_needed=False)

    def _schedule_report(self, *, is_needed: bool) -> None:
        if self._pending_report is not None:
            self._pending_report.cancel()
        loop = asyncio.get_running_loop()
        self._pending_report = loop.call_later(REPORT_RETRY_S, self._report) if is_needed else None


def _describe_exit(code: int, child: Child) -> str:
    """Describe why the process ended; a killed process has logged no reason."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}: {child.failure_line()}"
