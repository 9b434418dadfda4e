"""A batch: a sliding window over frozen targets, on the real Temporal server, with operations that the test plays."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Worker

from contracts import batches as names
from contracts.batches import (
    AdmitMembers,
    Admitted,
    BatchInput,
    BatchOrder,
    BatchProgress,
    BatchState,
    CancelMembers,
    CloseBatch,
    Member,
    Target,
    Verdict,
    Watched,
    WatchMembers,
    member_op_id,
)
from contracts.temporal import Wanted
from domain.identity import new_op_id
from domain.operation import State
from runtime.temporal import TemporalRuns
from workflows.batch import Batch


class Fleet:
    """Plays admission and the rows of the operations."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.most_running = 0
        self.cancelled: list[str] = []
        self.closes: list[CloseBatch] = []
        self.verdicts: dict[str, Member] = {}
        self._states: dict[str, State] = {}
        self._away: set[str] = set()
        self._names: dict[str, str] = {}
        self._changed = asyncio.Condition()

    async def settle(self, node: str, state: State) -> None:
        """That node's operation ends."""
        async with self._changed:
            self._states[self._names[node]] = state
            self._changed.notify_all()

    async def go_away(self, node: str) -> None:
        async with self._changed:
            self._away.add(self._names[node])
            self._changed.notify_all()

    async def until(self, condition: Callable[["Fleet"], bool]) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: condition(self)), 30)

    async def until_asked(self, *nodes: str) -> None:
        await self.until(lambda fleet: set(nodes) <= set(fleet.asked))

    async def until_state(self, state: BatchState) -> None:
        await self.until(lambda fleet: any(close.state is state for close in fleet.closes))

    def running(self) -> int:
        return sum(1 for op_id in self._names.values() if op_id not in self._states)

    @activity.defn(name=names.OPEN_BATCH)
    async def open_batch(self, batch: BatchInput) -> None:
        assert batch.targets

    @activity.defn(name=names.ADMIT_MEMBERS)
    async def admit_members(self, asked: AdmitMembers) -> Admitted:
        async with self._changed:
            members = tuple(self._admit(asked.batch, target) for target in asked.targets)
            self.most_running = max(self.most_running, self.running())
            self._changed.notify_all()
            return Admitted(members=members)

    def _admit(self, batch: BatchInput, target: Target) -> Member:
        self.asked.append(target.node_name)
        if target.node_name in self.verdicts:
            return self.verdicts[target.node_name].model_copy(update={"node_id": target.node_id})
        op_id = member_op_id(batch.batch_id, target.node_id)
        self._names[target.node_name] = op_id
        return Member(node_id=target.node_id, node_name=target.node_name, op_id=op_id)

    @activity.defn(name=names.WATCH_MEMBERS)
    async def watch_members(self, watch: WatchMembers) -> Watched:
        def news() -> bool:
            return any(op_id in self._states for op_id in watch.op_ids) or away() != watch.away

        def away() -> tuple[str, ...]:
            return tuple(sorted(self._away & set(watch.op_ids) - self._states.keys()))

        async with self._changed:
            while not news():
                activity.heartbeat()
                try:
                    await asyncio.wait_for(self._changed.wait(), 1)
                except TimeoutError:
                    continue
            ended = {op_id: self._states[op_id] for op_id in watch.op_ids if op_id in self._states}
            return Watched(ended=ended, away=away())

    @activity.defn(name=names.CANCEL_MEMBERS)
    async def cancel_members(self, cancel: CancelMembers) -> None:
        async with self._changed:
            self.cancelled.extend(cancel.op_ids)
            self._states.update(dict.fromkeys(cancel.op_ids, State.CANCELLED))
            self._changed.notify_all()

    @activity.defn(name=names.CLOSE_BATCH)
    async def close_batch(self, close: CloseBatch) -> None:
        async with self._changed:
            self.closes.append(close)
            self._changed.notify_all()


Handle = WorkflowHandle[Batch, BatchProgress]
Begin = Callable[..., Awaitable[Handle]]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
async def begin(client: Client, fleet: Fleet) -> AsyncIterator[Begin]:
    queue = f"test-{uuid.uuid4()}"

    async def started(nodes: int, **changes: Any) -> Handle:
        batch = BatchInput(
            batch_id=new_op_id(),
            wanted=Wanted(backend="echo", family="echo", version="2"),
            targets=tuple(Target(node_id=f"id-{number}", node_name=f"n{number}") for number in range(nodes)),
            created_at=datetime.now(UTC),
            requested_by="ada",
            **changes,
        )
        await TemporalRuns(client, queue=queue).start_batch(batch)
        return client.get_workflow_handle_for(Batch.run, names.batch_workflow_id(batch.batch_id))

    activities: list[Callable[..., Any]] = [
        fleet.open_batch,
        fleet.admit_members,
        fleet.watch_members,
        fleet.cancel_members,
        fleet.close_batch,
    ]
    async with Worker(client, task_queue=queue, workflows=[Batch], activities=activities):
        yield started


async def result(handle: Handle) -> BatchProgress:
    return await asyncio.wait_for(handle.result(), 30)


async def test_no_more_than_the_window_run_at_once_and_all_get_their_turn(begin: Begin, fleet: Fleet) -> None:
    handle = await begin(6, max_parallel=2)
    for number in range(6):
        await fleet.until_asked(f"n{number}")
        await fleet.settle(f"n{number}", State.SUCCEEDED)
    assert (await result(handle)).ended == 6
    assert fleet.most_running == 2
    assert fleet.closes[-1].state is BatchState.COMPLETED


async def test_zero_means_all_at_once(begin: Begin, fleet: Fleet) -> None:
    handle = await begin(120, max_parallel=0)
    await fleet.until(lambda fleet: len(fleet.asked) == 120)
    assert fleet.running() == 120
    for number in range(120):
        await fleet.settle(f"n{number}", State.SUCCEEDED)
    await result(handle)


async def test_too_many_failures_stop_the_rest(begin: Begin, fleet: Fleet) -> None:
    handle = await begin(5, max_parallel=1, max_failures=2)
    for number in range(2):
        await fleet.until_asked(f"n{number}")
        await fleet.settle(f"n{number}", State.FAILED)
    with pytest.raises(WorkflowFailureError):
        await result(handle)
    assert fleet.asked == ["n0", "n1"]
    left = [member for close in fleet.closes for member in close.members]
    assert [member.detail for member in left] == ["not started: batch stopped after 2 failures"] * 3
    assert {member.verdict for member in left} == {Verdict.NOT_STARTED}
    assert fleet.closes[-1].state is BatchState.STOPPED


async def test_absent_nodes_never_block_the_window(begin: Begin, fleet: Fleet) -> None:
    handle = await begin(3, max_parallel=1)
    await fleet.until_asked("n0")
    await fleet.go_away("n0")
    await fleet.until_asked("n1")
    await fleet.settle("n1", State.SUCCEEDED)
    await fleet.until_asked("n2")
    await fleet.settle("n2", State.SUCCEEDED)
    await fleet.settle("n0", State.SUCCEEDED)
    await result(handle)


async def test_a_paused_batch_starts_nothing_until_it_is_resumed(begin: Begin, fleet: Fleet) -> None:
    handle = await begin(2, max_parallel=1)
    await fleet.until_asked("n0")
    await handle.signal(names.SIGNAL_PAUSE, BatchOrder(by="ada"))
    await fleet.until_state(BatchState.PAUSED)
    await fleet.settle("n0", State.SUCCEEDED)
    assert (await handle.query(Batch.progress)).waiting == 1
    await handle.signal(names.SIGNAL_RESUME, BatchOrder(by="ada"))
    await fleet.until_asked("n1")
    await fleet.settle("n1", State.SUCCEEDED)
    await result(handle)


@pytest.mark.parametrize("in_the_web_ui", [False, True])
async def test_a_cancelled_batch_cancels_its_own_operations_and_starts_no_more(
    begin: Begin, fleet: Fleet, in_the_web_ui: bool
) -> None:
    fleet.verdicts["n1"] = Member(node_id="", node_name="n1", op_id="somebody-elses", joined=True)
    handle = await begin(4, max_parallel=2)
    await fleet.until_asked("n0", "n1")
    if in_the_web_ui:
        await handle.cancel()
    else:
        await handle.signal(names.SIGNAL_CANCEL, BatchOrder(by="ada"))
    await fleet.until(lambda fleet: bool(fleet.cancelled))
    fleet._names["n1"] = "somebody-elses"
    await fleet.settle("n1", State.SUCCEEDED)
    await result(handle)
    assert fleet.cancelled == [fleet._names["n0"]], "what it only joined is not its own to cancel"
    assert fleet.asked == ["n0", "n1"]
    assert fleet.closes[-1].state is BatchState.CANCELLED


async def test_conflicts_are_results_of_their_nodes_and_stop_nobody(begin: Begin, fleet: Fleet) -> None:
    fleet.verdicts["n0"] = Member(node_id="", node_name="n0", verdict=Verdict.CONFLICT, detail="op 7 holds it")
    handle = await begin(2, max_parallel=1)
    await fleet.until_asked("n1")
    await fleet.settle("n1", State.SUCCEEDED)
    assert (await result(handle)).failures == 0
