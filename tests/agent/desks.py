"""The desk with a performer that waits for the test's word, and a reporter that takes note."""

import asyncio

from agent.failures import OperationFailed
from agent.job import Done, Job
from agent.journal import Journal, MemoryJournal
from agent.operations import Operations
from contracts.messages import Command, CommandReply, Outcome, Progress
from domain.operation import Kind, Reason
from tests.agent.waiting import until


class Hands:
    """Begins every job and ends it when told how."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.jobs: dict[str, Job] = {}
        self.discarded: list[str] = []
        self.abandoned: list[str] = []
        self.commits: set[str] = set()
        self._words: dict[str, asyncio.Future[str]] = {}
        self.working: dict[str, str] = {}
        """family -> op_id: two on one family is what must never be"""

    async def perform(self, job: Job) -> Done:
        command = job.command
        assert command.family not in self.working
        self.begun.append(command.op_id)
        self.jobs[command.op_id] = job
        self.working[command.family] = command.op_id
        self._words[command.op_id] = asyncio.get_running_loop().create_future()
        try:
            word = await self._words[command.op_id]
            if word == "break":
                raise RuntimeError("a fault of the agent")
            if word == "fail":
                raise OperationFailed(Reason.DOWNLOAD_FAILED, "as told")
            job.commit()
            self.commits.add(command.op_id)
            if word == "commit and wait":
                self._words[command.op_id] = asyncio.get_running_loop().create_future()
                await self._words[command.op_id]
            return Done(changed=True)
        finally:
            del self.working[command.family]

    async def discard(self, command: Command) -> None:
        self.discarded.append(command.op_id)

    async def abandon(self, op_id: str) -> None:
        self.abandoned.append(op_id)

    async def tell(self, op_id: str, word: str) -> None:
        """End the job, and let the desk take it in."""
        await until(lambda: op_id in self._words and not self._words[op_id].done())
        self._words[op_id].set_result(word)


class Notes:
    """A reporter without a bus."""

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
    """Desk, hands and notes together."""

    def __init__(self, journal: Journal | None = None, *, journal_every: float = 0.01) -> None:
        self.hands = Hands()
        self.notes = Notes()
        self.journal = journal or MemoryJournal()
        self.desk = Operations(self.journal, self.hands, self.notes, progress_every=0.01, journal_every=journal_every)

    async def send(self, command: Command) -> CommandReply:
        reply = await self.desk.command(command)
        assert reply is not None
        return reply


def install(op_id: str = "op", *, family: str = "echo", decision: int = 1, kind: Kind = Kind.INSTALL) -> Command:
    return Command(op_id=op_id, family=family, backend=family, decision=decision, kind=kind)
