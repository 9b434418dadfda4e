"""Batch slots of nodes that were away and return: real batches, runs and rows; the nodes are simulated."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from nodesmith.activities.batches import BatchActivities
from nodesmith.activities.records import RecordActivities
from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.contracts.temporal import batches as batch_names
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.batches import (
    BatchInput,
    BatchOrder,
    BatchProgress,
    BatchState,
    Target,
    batch_workflow_id,
    member_op_id,
    member_request,
)
from nodesmith.contracts.temporal.dispatch import (
    DISPATCH,
    RUN_ON_NODE,
    Accepted,
    Dispatched,
    DispatchTask,
    Ended,
    NodeUnreachable,
    PermitGranted,
)
from nodesmith.contracts.temporal.operations import Intent, Policy
from nodesmith.contracts.words import describe
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.node import Node
from nodesmith.domain.operation import OPEN, Operation, Reason, State
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.operations.verified_records import VerifiedRecords
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.permits import PermitTable
from nodesmith.workflows.backend_operation import BackendOperation
from nodesmith.workflows.batch import Batch
from tests.api.station import until
from tests.deadlines import HANGS_S
from tests.fakes.node_link import AcceptingProofs
from tests.fakes.workers import EndingWorker
from tests.services.conftest import Join, now, orders_on


class Site:
    """Simulated nodes, connected or not, that work until the test lets them finish."""

    def __init__(self, client: Client, database: Database, nodes: Sequence[Node]) -> None:
        self.client = client
        self.nodes = nodes
        self.batch_id = new_op_id()
        self.family = f"backend-{uuid.uuid4()}"
        self.operations = OperationTable(database)
        self.batches = Batches(database)
        self.runs = TemporalRuns(client, queue=f"test-{uuid.uuid4()}")
        self.present: set[str] = set()
        self.most_at_work = 0
        self._at_work: dict[str, asyncio.Future[Result]] = {}
        self._registry = Nodes(database)
        self._permits = PermitTable(database)
        self._trail = AuditTrail(database)
        self._orders = orders_on(database)

    @activity.defn(name=DISPATCH)
    async def dispatch(self, task: DispatchTask) -> Dispatched:
        if task.request.node_id not in self.present:
            return Dispatched(result=NodeUnreachable())
        permit = await self._permits.permit(task.request.op_id, task.decision, token="t", on_node=task.accepted)
        return Dispatched(result=Accepted() if isinstance(permit, PermitGranted) else permit)

    @activity.defn(name=RUN_ON_NODE)
    async def run_on_node(self, task: DispatchTask) -> Dispatched:
        node_id = task.request.node_id
        if node_id not in self.present:
            return Dispatched(result=NodeUnreachable())
        ended = self._at_work[node_id] = asyncio.get_running_loop().create_future()
        self.most_at_work = max(self.most_at_work, len(self._at_work))
        try:
            outcome = Outcome(op_id=task.request.op_id, result=await ended, reason=None, changed=True)
        finally:
            del self._at_work[node_id]
        if outcome.result is Result.FAILED:
            outcome = outcome.model_copy(update={"reason": Reason.NO_DISK})
        return Dispatched(result=Ended(outcome=outcome))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        lock = OperationLock(self.operations, self.runs, None)
        batch = BatchActivities(lock, self._registry, self.operations, self.runs, self.batches)
        record = RecordActivities(VerifiedRecords(self.operations, AcceptingProofs()), self._trail).record
        steps: list[Callable[..., Any]] = [
            *(batch.open_batch, batch.admit_members, batch.watch_members, batch.cancel_members, batch.close_batch),
            record,
        ]
        node = names.node_queue(self.runs.queue)
        at_node: list[Callable[..., Any]] = [self.dispatch, self.run_on_node, record]
        async with (
            EndingWorker(self.client, task_queue=self.runs.queue, workflows=[Batch], activities=steps),
            EndingWorker(self.client, task_queue=node, workflows=[BackendOperation], activities=at_node),
        ):
            try:
                yield
            finally:
                self._stop_working()

    def _stop_working(self) -> None:
        """End the activities: a worker that shuts down waits for them, and the SDK may lose its cancel of one."""
        for ended in self._at_work.values():
            ended.cancel()

    async def begin(self, **changes: Any) -> None:
        """Start a batch over all nodes with one slot."""
        batch = BatchInput(
            batch_id=self.batch_id,
            wanted=Intent(backend=self.family, family=self.family, version="1", uri="/artifacts/echo-1.tar.gz"),
            targets=tuple(Target(node_id=node.id, node_name=node.name) for node in self.nodes),
            created_at=now(),
            policy=Policy(heartbeat_timeout=timedelta(minutes=5)),  # the simulated nodes send no heartbeats
            **{"max_parallel": 2, **changes},
        )
        await self._orders.add([member_request(batch, target) for target in batch.targets])
        await self.runs.start_batch(batch)

    async def order(self, signal: str) -> None:
        assert await self.runs.order_batch(self.batch_id, signal, BatchOrder(by="ada"))

    async def terminate(self) -> None:
        """Terminate the run and wait until visibility, which lags, shows it."""
        await self._handle().terminate()
        await until(self.runs.open_batches, lambda listed: self.batch_id not in listed)

    async def comes_back(self, *nodes: Node) -> None:
        """Connect the node and wake its operations, like a heartbeat."""
        self.present.update(node.id for node in nodes)
        for row in await self.operations.waiting_for([node.id for node in nodes]):
            await self.runs.node_back(row.workflow_id, row.node_id)

    async def at_work(self, number: int) -> list[str]:
        """Wait until this many nodes work; returns them in order of start."""
        return await until(lambda: asyncio.sleep(0, list(self._at_work)), lambda at_work: len(at_work) == number)

    async def finish(self, node_id: str, result: Result = Result.SUCCEEDED) -> None:
        """Finish an operation and wait for its row: only then the batch gives the slot to another."""
        op_id = member_op_id(self.batch_id, node_id)
        self._at_work[node_id].set_result(result)
        await until(lambda: self.operations.states([op_id]), lambda standing: standing[op_id][0] not in OPEN)

    async def row(self, node: Node) -> Operation:
        row = await self.operations.find(member_op_id(self.batch_id, node.id))
        assert row is not None
        return row

    async def all_wait(self, reason: Reason, *nodes: Node) -> None:
        wanted = {member_op_id(self.batch_id, node.id): (State.WAITING, reason) for node in nodes}

        await until(lambda: self.operations.states(list(wanted)), lambda standing: standing == wanted)

    async def progress(self) -> BatchProgress:
        return await self._handle().query(Batch.progress)

    async def turns_given(self) -> int:
        """The turns in the state of the workflow; the query is answered after all earlier signals."""
        await self.progress()
        events = (await self._handle().fetch_history()).events
        return sum(event.HasField("signal_external_workflow_execution_initiated_event_attributes") for event in events)

    async def end(self) -> BatchProgress:
        return await asyncio.wait_for(self._handle().result(), HANGS_S)

    def _handle(self) -> WorkflowHandle[Batch, BatchProgress]:
        return self.client.get_workflow_handle_for(Batch.run, batch_workflow_id(self.batch_id))


@pytest.fixture
async def site(client: Client, database: Database, join: Join) -> AsyncIterator[Site]:
    site = Site(client, database, [await join() for _ in range(5)])
    async with site.working():
        yield site


async def test_nodes_that_return_together_respect_max_parallel(site: Site) -> None:
    """G12: `max_parallel` also applies to nodes that were away at their turn."""
    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await site.comes_back(*site.nodes)
    for left in range(len(site.nodes), 0, -1):
        running = await site.at_work(min(2, left))
        idle = [node for node in site.nodes if node.id not in running and (await site.row(node)).state in OPEN]
        await site.all_wait(Reason.BATCH_TURN, *idle)
        await site.finish(running[0])
    assert (await site.end()).ended == len(site.nodes)
    assert site.most_at_work == 2


async def test_node_that_disconnects_again_releases_its_slot(site: Site) -> None:
    """H27: an absent node never blocks a slot, however often it connects and disconnects."""
    first, second, third = site.nodes[:3]
    await site.begin(max_parallel=1)
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await site.comes_back(first)
    [running] = await site.at_work(1)
    assert running == first.id
    for node in (second, third):  # in that order
        await site.comes_back(node)
        await site.all_wait(Reason.BATCH_TURN, node)
    site.present.discard(second.id)
    await site.finish(first.id)
    [running] = await site.at_work(1)
    assert running == third.id, "the second had its turn and was not there"
    await site.all_wait(Reason.NODE_AWAY, second)
    await site.comes_back(*site.nodes)
    for _ in range(4):
        [running] = await site.at_work(1)
        await site.finish(running)
    assert (await site.end()).ended == len(site.nodes)
    assert site.most_at_work == 1


async def test_node_that_returns_to_a_paused_batch_waits_for_it(site: Site) -> None:
    """G12: a pause applies to every member that has not started."""
    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await site.order(batch_names.SIGNAL_PAUSE)
    await site.comes_back(*site.nodes)
    await site.all_wait(Reason.BATCH_TURN, *site.nodes)
    assert await site.turns_given() == 0
    await site.order(batch_names.SIGNAL_RESUME)
    for left in range(len(site.nodes), 0, -1):
        await site.finish((await site.at_work(min(2, left)))[0])
    assert (await site.end()).failures == 0
    assert await site.turns_given() == len(site.nodes)


async def test_node_that_returns_to_a_stopped_batch_does_not_start(site: Site) -> None:
    """G12: a batch that failed on three nodes does not start on one that returns late."""
    early, late = site.nodes[0], site.nodes[1:]
    site.present.add(early.id)
    await site.begin(max_failures=1)
    [running] = await site.at_work(1)
    assert running == early.id
    await site.all_wait(Reason.NODE_AWAY, *late)
    await site.finish(early.id, Result.FAILED)
    await until(site.progress, lambda progress: progress.failures == 1)
    await site.comes_back(*late)
    with pytest.raises(WorkflowFailureError):
        await site.end()
    stopped = await site.batches.find(site.batch_id)
    assert stopped is not None
    assert (stopped.state, stopped.detail) == (BatchState.STOPPED, "batch stopped after 1 failure")
    ends = [await site.row(node) for node in late]
    why = f"batch {site.batch_id} stopped after 1 failure"
    assert {(row.state, row.reason, row.detail) for row in ends} == {(State.CANCELLED, Reason.BATCH_STOPPED, why)}
    assert "by request" not in describe(ends[0]).sentence
    assert site.most_at_work == 1


async def test_members_of_a_batch_that_was_terminated_need_no_slot(site: Site) -> None:
    """No member is stuck after the batch was terminated in the Web UI and no run gives turns."""
    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await site.terminate()
    await site.comes_back(*site.nodes)
    for node_id in await site.at_work(len(site.nodes)):
        await site.finish(node_id)
    for node in site.nodes:
        await until(partial(site.row, node), lambda row: row.state is State.SUCCEEDED)


async def test_members_without_a_row_are_cancelled_with_their_batch(site: Site, database: Database) -> None:
    """Their rows were not written or were lost; the batch knows their runs."""
    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    async with database.session() as session:
        await session.execute(text("DELETE FROM operations WHERE batch_id = :id"), {"id": site.batch_id})
    await site.order(batch_names.SIGNAL_CANCEL)
    await site.end()
    for node in site.nodes:
        row = await site.row(node)
        assert (row.state, row.reason, row.cancelled_by) == (State.CANCELLED, Reason.BATCH_CANCELLED, "ada")
