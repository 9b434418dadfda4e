"""A workflow under test: the real Temporal server and the real workflow, with a node whose words the test speaks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from contracts import temporal as names
from contracts.batches import member_op_id
from contracts.messages import Installed, Outcome, Result
from contracts.temporal import (
    CancelOrder,
    CancelWord,
    NodeTask,
    NodeWord,
    OperationInput,
    OperationRequest,
    OperationResult,
    PhaseReport,
    Policy,
    Projection,
    Status,
    Transitions,
    Wanted,
)
from domain.errors import ServiceUnavailable
from domain.identity import new_op_id
from domain.operation import Phase, Reason, State
from runtime.temporal import TemporalRuns
from workflows.backend_operation import BackendOperation

QUICK = Policy(
    node_poll=timedelta(seconds=30),
    back_off_first=timedelta(milliseconds=50),
    back_off_cap=timedelta(milliseconds=100),
    source_retry=timedelta(milliseconds=50),
    heartbeat_timeout=timedelta(seconds=5),
)


class Station:
    """Plays the node and the database; `say` answers the oldest unanswered command."""

    def __init__(self) -> None:
        self.commands: asyncio.Queue[NodeTask] = asyncio.Queue()
        self.asked: list[NodeTask] = []
        """at once; `commands` are those that somebody stays attached to"""
        self.cancels: asyncio.Queue[CancelOrder] = asyncio.Queue()
        self._words: asyncio.Queue[NodeWord | Exception] = asyncio.Queue()
        self._first_words: asyncio.Queue[NodeWord] = asyncio.Queue()
        self._cancel_words: asyncio.Queue[CancelWord] = asyncio.Queue()
        self.rows: list[Projection] = []
        self.database_is_up = True
        self._refused = 0
        self._changed = asyncio.Condition()

    def say(self, word: NodeWord | Exception) -> None:
        self._words.put_nowait(word)

    def say_at_once(self, word: NodeWord) -> None:
        """The node's first word, for who asks next; a station that was told nothing leaves it open."""
        self._first_words.put_nowait(word)

    def say_to_cancel(self, word: CancelWord) -> None:
        self._cancel_words.put_nowait(word)

    @property
    def states(self) -> list[State]:
        return [row.state for row in self.rows]

    async def seen(self, condition: Callable[["Station"], bool]) -> None:
        """Wait until the rows satisfy the condition."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: condition(self)), 30)

    async def refused_writes(self, number: int) -> None:
        """Wait until the database that is away was asked so many times."""
        await self.seen(lambda station: station._refused >= number)

    async def reached(self, state: State) -> Projection:
        await self.seen(lambda station: bool(station.rows) and station.rows[-1].state is state)
        return self.rows[-1]

    @activity.defn(name=names.FIRST_WORD)
    async def first_word(self, task: NodeTask) -> NodeWord:
        self.asked.append(task)
        return NodeWord() if self._first_words.empty() else self._first_words.get_nowait()

    @activity.defn(name=names.RUN_ON_NODE)
    async def run_on_node(self, task: NodeTask) -> NodeWord:
        self.commands.put_nowait(task)
        word = await self._words.get()
        if isinstance(word, Exception):
            raise word
        return word

    @activity.defn(name=names.CANCEL_ON_NODE)
    async def cancel_on_node(self, order: CancelOrder) -> CancelWord:
        self.cancels.put_nowait(order)
        return await self._cancel_words.get()

    @activity.defn(name=names.RECORD)
    async def record(self, transitions: Transitions) -> None:
        async with self._changed:
            if not self.database_is_up:
                self._refused += 1
                self._changed.notify_all()
                raise ServiceUnavailable("PostgreSQL does not answer.")
            self.rows.extend(transitions.rows)
            self._changed.notify_all()


class Operation:
    """One started operation and its station."""

    def __init__(self, station: Station, handle: WorkflowHandle[BackendOperation, OperationResult], op_id: str) -> None:
        self.station = station
        self.handle = handle
        self.op_id = op_id

    async def result(self) -> OperationResult:
        return await asyncio.wait_for(self.handle.result(), 30)

    async def status(self) -> Status:
        return await self.handle.query(BackendOperation.status)

    def succeeded(self, *, changed: bool = True) -> NodeWord:
        after = Installed(name="echo", version="2")
        outcome = Outcome(op_id=self.op_id, result=Result.SUCCEEDED, changed=changed, after=after)
        return NodeWord(outcome=outcome, accepted=True)

    def failed(self, reason: Reason, error: str = "it broke", retry_after_s: float | None = None) -> NodeWord:
        outcome = Outcome(
            op_id=self.op_id, result=Result.FAILED, reason=reason, error=error, retry_after_s=retry_after_s
        )
        return NodeWord(outcome=outcome, accepted=True)

    async def begin_on_node(self) -> None:
        """The node has accepted and says so."""
        await self.begin_unseen()
        await self.station.reached(State.RUNNING)

    async def begin_unseen(self) -> None:
        """The same, when no row can be written."""
        await self.station.commands.get()
        await self.handle.signal(names.SIGNAL_PHASE, PhaseReport(op_id=self.op_id, phase=Phase.DOWNLOADING))


@asynccontextmanager
async def worker_of(client: Client, station: Station, queue: str) -> AsyncIterator[None]:
    """A worker of the two queues, as `workers/` composes them."""
    short: list[Callable[..., Any]] = [station.cancel_on_node, station.record]
    async with (
        Worker(client, task_queue=queue, activities=short),
        Worker(
            client,
            task_queue=names.node_queue(queue),
            workflows=[BackendOperation],
            activities=[station.first_word, station.run_on_node, *short],
        ),
    ):
        yield


async def deaf_run(client: Client, workflow_id: str) -> None:
    """A run that takes signals and that nobody works on."""
    await client.start_workflow("deaf", id=workflow_id, task_queue=f"deaf-{workflow_id}")


async def start(
    client: Client, station: Station, queue: str, policy: Policy = QUICK, *, batch_id: str | None = None
) -> Operation:
    node_id = f"node-{queue}"
    request = OperationRequest(
        op_id=member_op_id(batch_id, node_id) if batch_id else new_op_id(),
        node_id=node_id,
        batch_id=batch_id,
        node_name="shelf-7",
        wanted=Wanted(backend="echo", family="echo", version="2", uri="/artifacts/echo-2.tar.gz"),
        requested_by="ada",
        created_at=datetime.now(UTC),
    )
    run_id = await TemporalRuns(client, queue=queue).start(OperationInput(request=request, policy=policy), intent="i")
    handle = client.get_workflow_handle_for(
        BackendOperation.run, names.operation_workflow_id(request.node_id, "echo"), run_id=run_id
    )
    return Operation(station, handle, request.op_id)
