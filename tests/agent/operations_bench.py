"""`NodeOperations` with a performer that the test controls and a reporter that records."""

import asyncio

from nodesmith.agent.operations.commands import NodeOperations
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Done, Job
from nodesmith.agent.operations.journal import Journal, MemoryJournal
from nodesmith.contracts.nats.messages import Command, CommandReply, Outcome, Progress
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.agent.waiting import until


class ControlledPerformer:
    """Begins every job and ends it as the test says."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.jobs: dict[str, Job] = {}
        self.discarded: list[str] = []
        self.abandoned: list[str] = []
        self.commits: set[str] = set()
        self._results: dict[str, asyncio.Future[str]] = {}
        self.working: dict[str, str] = {}
        """family -> op_id: two jobs on one family must never happen"""

    async def perform(self, job: Job) -> Done:
        command = job.command
        assert command.family not in self.working
        self.begun.append(command.op_id)
        self.jobs[command.op_id] = job
        self.working[command.family] = command.op_id
        self._results[command.op_id] = asyncio.get_running_loop().create_future()
        try:
            result = await self._results[command.op_id]
            if result == "break":
                raise RuntimeError("a fault of the agent")
            if result == "fail":
                raise OperationFailed(Reason.DOWNLOAD_FAILED, "as requested")
            job.commit()
            self.commits.add(command.op_id)
            if result == "commit and wait":
                self._results[command.op_id] = asyncio.get_running_loop().create_future()
                await self._results[command.op_id]
            return Done(changed=True)
        finally:
            del self.working[command.family]

    async def discard(self, command: Command) -> None:
        self.discarded.append(command.op_id)

    async def abandon(self, op_id: str) -> None:
        self.abandoned.append(op_id)

    async def finish(self, op_id: str, result: str) -> None:
        """End the job with this result."""
        await until(lambda: op_id in self._results and not self._results[op_id].done())
        self._results[op_id].set_result(result)


class RecordingReporter:
    """Records progress and outcomes instead of publishing them."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.ticks: list[Progress] = []
        self.changed = asyncio.Event()

    async def progress(self, progress: Progress) -> None:
        self.ticks.append(progress)

    async def outcome(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    async def ended(self, op_id: str, times: int = 1) -> Outcome:
        await until(lambda: sum(outcome.op_id == op_id for outcome in self.outcomes) >= times)
        return [outcome for outcome in self.outcomes if outcome.op_id == op_id][-1]


class Bench:
    """Operations, performer and reporter together."""

    def __init__(self, journal: Journal | None = None, *, journal_every: float = 0.01) -> None:
        self.performer = ControlledPerformer()
        self.reporter = RecordingReporter()
        self.journal = journal or MemoryJournal()
        self.operations = NodeOperations(
            self.journal, self.performer, self.reporter, progress_every=0.01, journal_every=journal_every
        )

    async def send(self, command: Command) -> CommandReply:
        reply = await self.operations.command(command)
        assert reply is not None
        return reply


def install(op_id: str = "op", *, family: str = "echo", decision: int = 1, kind: Kind = Kind.INSTALL) -> Command:
    return Command(op_id=op_id, family=family, backend=family, decision=decision, kind=kind)
