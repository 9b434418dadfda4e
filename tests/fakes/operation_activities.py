"""Test bench of the operation workflow: real Temporal server and workflow, simulated node and database."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowHandle

from nodesmith.contracts.nats.messages import Installed, Outcome, Result
from nodesmith.contracts.temporal import dispatch as dispatching
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.batches import member_op_id
from nodesmith.contracts.temporal.dispatch import (
    Accepted,
    Busy,
    CancelOrder,
    CancelResult,
    Dispatched,
    DispatchResult,
    DispatchTask,
    Ended,
    NodeUnreachable,
    OtherEnd,
    OtherOperation,
    Refused,
    RowEnded,
    Silent,
)
from nodesmith.contracts.temporal.locks import workflow_id_of
from nodesmith.contracts.temporal.operations import (
    Intent,
    OperationInput,
    OperationRequest,
    OperationResult,
    PhaseReport,
    Policy,
    Projection,
    RecordResult,
    RowEnd,
    Status,
    Transitions,
)
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import ENDED, Phase, Reason, State
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.workflows.backend_operation import BackendOperation
from tests.deadlines import HANGS_S
from tests.fakes.workers import EndingWorker

QUICK = Policy(
    node_poll=timedelta(seconds=30),
    back_off_first=timedelta(milliseconds=50),
    back_off_cap=timedelta(milliseconds=100),
    source_retry=timedelta(milliseconds=50),
    heartbeat_timeout=timedelta(minutes=5),  # the simulated nodes send no heartbeats
)


T = TypeVar("T")
SENT = (Accepted, Ended, Busy, Refused, Silent)
"""results after which the command may have reached the node"""


class Station:
    """Simulates the node and the database.

    A dispatch is accepted unless `answer_dispatch` sets another result; `send_result` is what the follower returns.
    """

    def __init__(self) -> None:
        self.commands: asyncio.Queue[DispatchTask] = asyncio.Queue()
        """one per follower"""
        self.dispatches: list[DispatchTask] = []
        self.is_absent = False
        """the node has no subscriber"""
        self.sent = 0
        """the "sent" mark of the row"""
        self.row_end: RowEnd | None = None
        """an end that the run did not write: by a restored database, or by the fleet monitor"""
        self.cancels: asyncio.Queue[CancelOrder] = asyncio.Queue()
        self.answer_to_cancels: CancelResult | None = None
        """the answer to every cancel, instead of those of `answer_cancel`"""
        self._results: asyncio.Queue[DispatchResult | Exception] = asyncio.Queue()
        self._at_once: asyncio.Queue[DispatchResult] = asyncio.Queue()
        self._cancel_results: asyncio.Queue[CancelResult] = asyncio.Queue()
        self._other_ends: asyncio.Queue[OtherEnd] = asyncio.Queue()
        self.rows: list[Projection] = []
        self.not_admitted: list[str] = []
        """operations reported to the audit trail"""
        self._ends: dict[str, RowEnd] = {}
        self.database_is_up = True
        self._refused = 0
        self._changed = asyncio.Condition()
        self._answers: set[asyncio.Future[Any]] = set()

    def stop_working(self) -> None:
        """End the activities: a worker that shuts down waits for them, and the SDK may lose its cancel of one."""
        for answer in self._answers:
            answer.cancel()

    async def _next(self, answers: "asyncio.Queue[T]") -> T:
        """Wait for the next answer of the test."""
        answer = asyncio.ensure_future(answers.get())
        self._answers.add(answer)
        try:
            return await answer
        finally:
            self._answers.discard(answer)

    def send_result(self, result: DispatchResult | Exception) -> None:
        self._results.put_nowait(result)

    def answer_dispatch(self, result: DispatchResult) -> None:
        """Set the result of the next dispatch."""
        self._at_once.put_nowait(result)

    def answer_cancel(self, result: CancelResult) -> None:
        self._cancel_results.put_nowait(result)

    def end_other(self, state: State, reason: Reason | None = None) -> None:
        """End the operation that installs the backend."""
        self._other_ends.put_nowait(OtherEnd(state=state, reason=reason))

    @property
    def states(self) -> list[State]:
        return [row.state for row in self.rows]

    async def seen(self, condition: Callable[["Station"], bool]) -> None:
        """Wait until the rows satisfy the condition."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: condition(self)), HANGS_S)

    async def refused_writes(self, number: int) -> None:
        """Wait until the unreachable database refused this many writes."""
        await self.seen(lambda station: station._refused >= number)

    async def reached(self, state: State) -> Projection:
        await self.seen(lambda station: bool(station.rows) and station.rows[-1].state is state)
        return self.rows[-1]

    @activity.defn(name=dispatching.DISPATCH)
    async def dispatch(self, task: DispatchTask) -> Dispatched:
        self.dispatches.append(task)
        if (end := self._end_of(task.request.op_id)) is not None:
            return Dispatched(result=RowEnded(end=end))
        result = self._result_at_once()
        if isinstance(result, SENT):
            self.sent = task.decision
        return Dispatched(result=result)

    def _result_at_once(self) -> DispatchResult:
        if not self._at_once.empty():
            return self._at_once.get_nowait()
        return NodeUnreachable() if self.is_absent else Accepted()

    @activity.defn(name=dispatching.RUN_ON_NODE)
    async def run_on_node(self, task: DispatchTask) -> Dispatched:
        self.commands.put_nowait(task)
        result = await self._next(self._results)
        if isinstance(result, Exception):
            raise result
        return Dispatched(result=result)

    @activity.defn(name=dispatching.CANCEL_ON_NODE)
    async def cancel_on_node(self, order: CancelOrder) -> CancelResult:
        self.cancels.put_nowait(order)
        if self.answer_to_cancels is not None:
            return self.answer_to_cancels
        return await self._next(self._cancel_results)

    @activity.defn(name=dispatching.WATCH_OPERATION)
    async def watch_operation(self, _other: OtherOperation) -> OtherEnd:
        return await self._next(self._other_ends)

    @activity.defn(name=names.RECORD)
    async def record(self, transitions: Transitions) -> RecordResult:
        async with self._changed:
            if not self.database_is_up:
                self._refused += 1
                self._changed.notify_all()
                raise ServiceUnavailable("PostgreSQL does not answer.")
            end = self._end_of(transitions.rows[-1].request.op_id)
            if end is not None or (transitions.only_unsent and self.sent):
                return RecordResult(written=False, end=end)
            self.rows.extend(transitions.rows)
            self._end_with(self.rows[-1])
            self._changed.notify_all()
            return RecordResult()

    @activity.defn(name=names.REPORT_NOT_ADMITTED)
    async def report_not_admitted(self, request: OperationRequest) -> None:
        self.not_admitted.append(request.op_id)

    def _end_with(self, row: Projection) -> None:
        if row.state in ENDED:
            self._ends[row.request.op_id] = RowEnd(state=row.state, reason=row.reason, detail=row.detail)

    def _end_of(self, op_id: str) -> RowEnd | None:
        return self.row_end or self._ends.get(op_id)


class Operation:
    """One started operation and its station."""

    def __init__(self, station: Station, handle: WorkflowHandle[BackendOperation, OperationResult], op_id: str) -> None:
        self.station = station
        self.handle = handle
        self.op_id = op_id

    async def result(self) -> OperationResult:
        return await asyncio.wait_for(self.handle.result(), HANGS_S)

    async def status(self) -> Status:
        return await self.handle.query(BackendOperation.status)

    def succeeded(self, *, changed: bool = True) -> Ended:
        after = Installed(name="echo", version="2")
        return Ended(outcome=Outcome(op_id=self.op_id, result=Result.SUCCEEDED, changed=changed, after=after))

    def failed(self, reason: Reason, error: str = "it broke", retry_after_s: float | None = None) -> Ended:
        outcome = Outcome(
            op_id=self.op_id, result=Result.FAILED, reason=reason, error=error, retry_after_s=retry_after_s
        )
        return Ended(outcome=outcome)

    async def begin_on_node(self) -> None:
        """Wait until the node has accepted and the row says so."""
        await self.begin_unseen()
        await self.station.reached(State.RUNNING)

    async def begin_unseen(self) -> None:
        """Wait for the acceptance while no row can be written."""
        await self.station.commands.get()
        await self.handle.signal(names.SIGNAL_PHASE, PhaseReport(op_id=self.op_id, phase=Phase.DOWNLOADING))


@asynccontextmanager
async def worker_of(client: Client, station: Station, queue: str) -> AsyncIterator[None]:
    """A worker of the two queues, as `workers/` composes them."""
    short: list[Callable[..., Any]] = [station.cancel_on_node, station.record, station.report_not_admitted]
    async with (
        EndingWorker(client, task_queue=queue, activities=[*short, station.watch_operation]),
        EndingWorker(
            client,
            task_queue=names.node_queue(queue),
            workflows=[BackendOperation],
            activities=[station.dispatch, station.run_on_node, *short],
        ),
    ):
        try:
            yield
        finally:
            station.stop_working()


async def deaf_run(client: Client, workflow_id: str) -> None:
    """Start a run that accepts signals but has no worker."""
    await client.start_workflow("deaf", id=workflow_id, task_queue=f"deaf-{workflow_id}")


ECHO = Intent(backend="echo", family="echo", version="2", uri="/artifacts/echo-2.tar.gz")
LOAD = Intent(kind=Kind.LOAD, backend="llama#0", family="echo", model="llama", replica_index=0, revision=3)
UNLOAD = LOAD.model_copy(update={"kind": Kind.UNLOAD, "family": ""})


def a_request(queue: str, batch_id: str | None = None, *, wanted: Intent = ECHO, after: str = "") -> OperationRequest:
    node_id = f"node-{queue}"
    return OperationRequest(
        op_id=member_op_id(batch_id, node_id) if batch_id else new_op_id(),
        node_id=node_id,
        batch_id=batch_id,
        node_name="node-7",
        wanted=wanted,
        requested_by="ada",
        after=after,
        created_at=datetime.now(UTC),
    )


async def start(
    client: Client,
    station: Station,
    queue: str,
    policy: Policy = QUICK,
    *,
    batch_id: str | None = None,
    wanted: Intent = ECHO,
    after: str = "",
) -> Operation:
    request = a_request(queue, batch_id, wanted=wanted, after=after)
    run_id = await TemporalRuns(client, queue=queue).start(OperationInput(request=request, policy=policy), intent="i")
    handle = client.get_workflow_handle_for(BackendOperation.run, workflow_id_of(request), run_id=run_id)
    return Operation(station, handle, request.op_id)
