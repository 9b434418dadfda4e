"""Nodes that were away when they had their turn, and come back: real batches, runs and rows; the nodes are played."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Worker

from activities.batches import BatchActivities
from activities.records import RecordActivities
from contracts import batches as batch_names
from contracts import temporal as names
from contracts.batches import BatchInput, BatchOrder, BatchProgress, BatchState, Target, batch_workflow_id, member_op_id
from contracts.dispatch import DISPATCH, RUN_ON_NODE, Accepted, Dispatched, DispatchTask, Ended, NodeUnreachable
from contracts.messages import Outcome, Result
from contracts.node_http import NodeView
from contracts.operation_http import OperationView
from contracts.temporal import Policy, Wanted
from domain.identity import new_op_id
from domain.operation import OPEN, Reason, State
from runtime.temporal import TemporalRuns
from services.gate import Gate
from store.batches import Batches
from store.database import Database
from store.nodes import Nodes
from store.operations import OperationTable
from tests.api.station import until
from tests.services.conftest import Join, now
from workflows.backend_operation import BackendOperation
from workflows.batch import Batch


class Site:
    """Nodes that are there or not, and work until the test lets them end."""

    def __init__(self, client: Client, database: Database, nodes: Sequence[NodeView]) -> None:
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

    @activity.defn(name=DISPATCH)
    async def dispatch(self, task: DispatchTask) -> Dispatched:
        return Dispatched(result=Accepted() if task.request.node_id in self.present else NodeUnreachable())

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
        gate = Gate(self.operations, self.runs)
        batch = BatchActivities(gate, self._registry, self.operations, self.runs, self.batches)
        record = RecordActivities(self.operations).record
        steps: list[Callable[..., Any]] = [
            *(batch.open_batch, batch.admit_members, batch.watch_members, batch.cancel_members, batch.close_batch),
            record,
        ]
        node = names.node_queue(self.runs.queue)
        at_node: list[Callable[..., Any]] = [self.dispatch, self.run_on_node, record]
        async with (
            Worker(self.client, task_queue=self.runs.queue, workflows=[Batch], activities=steps),
            Worker(self.client, task_queue=node, workflows=[BackendOperation], activities=at_node),
        ):
            yield

    async def begin(self, **changes: Any) -> None:
        """A batch over all nodes, a place at a time."""
        batch = BatchInput(
            batch_id=self.batch_id,
            wanted=Wanted(backend=self.family, family=self.family, version="1", uri="/artifacts/echo-1.tar.gz"),
            targets=tuple(Target(node_id=node.id, node_name=node.name) for node in self.nodes),
            created_at=now(),
            policy=Policy(heartbeat_timeout=timedelta(minutes=5)),  # the played nodes send no heartbeats
            **{"max_parallel": 2, **changes},
        )
        await self.runs.start_batch(batch)

    async def order(self, signal: str) -> None:
        assert await self.runs.order_batch(self.batch_id, signal, BatchOrder(by="ada"))

    async def terminate(self) -> None:
        await self._handle().terminate()

    async def comes_back(self, *nodes: NodeView) -> None:
        """As a heartbeat has it: what waits for the node is told."""
        self.present.update(node.id for node in nodes)
        for row in await self.operations.waiting_for([node.id for node in nodes]):
            await self.runs.node_back(row.workflow_id, row.node_id)

    async def at_work(self, number: int) -> list[str]:
        """Wait until so many are; the nodes, the first one first."""
        return await until(lambda: asyncio.sleep(0, list(self._at_work)), lambda at_work: len(at_work) == number)

    async def finish(self, node_id: str, result: Result = Result.SUCCEEDED) -> None:
        """Until its row says so: the batch gives the slot to another only then."""
        op_id = member_op_id(self.batch_id, node_id)
        self._at_work[node_id].set_result(result)
        await until(lambda: self.operations.standing([op_id]), lambda standing: standing[op_id][0] not in OPEN)

    async def row(self, node: NodeView) -> OperationView:
        row = await self.operations.find(member_op_id(self.batch_id, node.id))
        assert row is not None
        return row

    async def all_wait(self, reason: Reason, *nodes: NodeView) -> None:
        wanted = {member_op_id(self.batch_id, node.id): (State.WAITING, reason) for node in nodes}

        await until(lambda: self.operations.standing(list(wanted)), lambda standing: standing == wanted)

    async def progress(self) -> BatchProgress:
        return await self._handle().query(Batch.progress)

    async def turns_given(self) -> int:
        """As Temporal has it; the question is answered after all that was said before."""
        await self.progress()
        events = (await self._handle().fetch_history()).events
        return sum(event.HasField("signal_external_workflow_execution_initiated_event_attributes") for event in events)

    async def end(self) -> BatchProgress:
        return await asyncio.wait_for(self._handle().result(), 60)

    def _handle(self) -> WorkflowHandle[Batch, BatchProgress]:
        return self.client.get_workflow_handle_for(Batch.run, batch_workflow_id(self.batch_id))


@pytest.fixture
async def site(client: Client, database: Database, join: Join) -> AsyncIterator[Site]:
    site = Site(client, database, [await join() for _ in range(5)])
    async with site.working():
        yield site


async def test_nodes_that_come_back_together_take_their_turns(site: Site) -> None:
    """G12: `max_parallel` holds also for those who were away when they had their turn."""
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


async def test_who_goes_away_again_gives_its_turn_back(site: Site) -> None:
    """H27: an absent node never blocks the window, however often it comes and goes."""
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


async def test_a_node_that_comes_back_to_a_paused_batch_waits_for_it(site: Site) -> None:
    """G12: a pause is for everybody that has not begun."""
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


async def test_a_node_that_comes_back_to_a_stopped_batch_is_left_alone(site: Site) -> None:
    """G12: what broke three nodes is not done to the one that comes late."""
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
    assert "by request" not in ends[0].message
    assert site.most_at_work == 1


async def test_members_of_a_batch_that_was_terminated_need_no_turn(site: Site) -> None:
    """Nothing is stuck: in the Web UI somebody ended the batch, and nobody is left to give turns."""
    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await site.terminate()
    await site.comes_back(*site.nodes)
    for node_id in await site.at_work(len(site.nodes)):
        await site.finish(node_id)
    for node in site.nodes:
        await until(partial(site.row, node), lambda row: row.state is State.SUCCEEDED)
