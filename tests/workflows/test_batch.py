"""The batch workflow on a real Temporal server, with simulated operations."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

import pytest
from temporalio.client import Client, WorkflowFailureError

from nodesmith.contracts.temporal import batches as names
from nodesmith.contracts.temporal.batches import (
    BatchCarried,
    BatchInput,
    BatchMember,
    BatchOrder,
    BatchProgress,
    BatchState,
    MembersWatched,
    MemberVerdict,
    Target,
)
from nodesmith.contracts.temporal.operations import Intent
from nodesmith.domain.operation import Reason, State
from nodesmith.workflows.batch import Batch
from nodesmith.workflows.batch_failures import Failures
from tests.deadlines import HANGS_S
from tests.fakes.batch_activities import Fleet, Handle, start, worker_of

Begin = Callable[..., Awaitable[Handle]]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
async def begin(client: Client, fleet: Fleet) -> AsyncIterator[Begin]:
    async with worker_of(client, fleet) as queue:
        yield partial(start, client, queue)


async def result(handle: Handle) -> BatchProgress:
    return await asyncio.wait_for(handle.result(), HANGS_S)


async def test_no_more_than_max_parallel_run_at_once_and_all_get_a_slot(begin: Begin, fleet: Fleet) -> None:
    """G12: a window."""
    handle = await begin(6, max_parallel=2)
    for number in range(6):
        await fleet.until_asked(f"n{number}")
        await fleet.settle(f"n{number}", State.SUCCEEDED)
    assert (await result(handle)).ended == 6
    assert fleet.most_running == 2
    assert fleet.closes[-1].state is BatchState.COMPLETED


async def test_zero_means_all_at_once(begin: Begin, fleet: Fleet) -> None:
    """H23, G11; S9 and S51, superseded: nodes are asked side by side, not one after another."""
    handle = await begin(120, max_parallel=0)
    await fleet.until(lambda fleet: len(fleet.asked) == 120)
    assert fleet.running() == 120
    for number in range(120):
        await fleet.settle(f"n{number}", State.SUCCEEDED)
    await result(handle)


async def test_too_many_failures_stop_the_rest(begin: Begin, fleet: Fleet) -> None:
    """G12: a limit of failures."""
    handle = await begin(5, max_parallel=1, max_failures=2)
    for number in range(2):
        await fleet.until_asked(f"n{number}")
        await fleet.settle(f"n{number}", State.FAILED)
    with pytest.raises(WorkflowFailureError):
        await result(handle)
    assert fleet.asked == ["n0", "n1"]
    left = [member for close in fleet.closes for member in close.members]
    assert [member.detail for member in left] == ["not started: batch stopped after 2 failures"] * 3
    assert {member.verdict for member in left} == {MemberVerdict.NOT_STARTED}
    assert fleet.closes[-1].state is BatchState.STOPPED


async def test_large_batch_is_cancelled_with_a_long_reason(begin: Begin, fleet: Fleet) -> None:
    """The verdicts of all nodes in one payload exceed the 2 MB of Temporal, and the run would fail."""
    handle = await begin(3500, max_parallel=1)
    await fleet.until_asked("n0")
    await handle.signal(names.SIGNAL_CANCEL, BatchOrder(by="ada", reason="r" * 500))
    await result(handle)
    assert sum(len(close.members) for close in fleet.closes) == 3499
    assert fleet.closes[-1].state is BatchState.CANCELLED


async def test_failed_attempts_stop_the_rest_when_they_are_counted(begin: Begin, fleet: Fleet) -> None:
    """Places that are held by back-offs: nobody has failed for good, and three attempts have."""
    handle = await begin(4, max_parallel=2, max_failures=3, count_attempts=True)
    await fleet.until_asked("n0", "n1")
    for node in ("n0", "n1", "n0"):
        await fleet.fail_attempt(node)
    await fleet.until_state(BatchState.STOPPED)
    for node in ("n0", "n1"):
        await fleet.settle(node, State.SUCCEEDED)
    assert (await result(handle)).failures == 0, "the members succeeded in the end: the run is not red"
    assert fleet.asked == ["n0", "n1"]
    assert {member.detail for close in fleet.closes for member in close.members} == {
        "not started: batch stopped after 3 failed attempts"
    }


async def test_failed_attempts_do_not_count_unless_asked(begin: Begin, fleet: Fleet) -> None:
    handle = await begin(2, max_parallel=1, max_failures=1)
    await fleet.until_asked("n0")
    await fleet.fail_attempt("n0")
    for node in ("n0", "n1"):
        await fleet.until_asked(node)
        await fleet.settle(node, State.SUCCEEDED)
    await result(handle)
    assert fleet.closes[-1].state is BatchState.COMPLETED


@pytest.mark.parametrize(
    ("end", "before", "counted"),
    [
        (State.FAILED, 0, 1),
        (State.FAILED, 2, 3),
        (State.DEAD_LETTER, 10, 10),
        (State.EXPIRED, 0, 1),
        (State.SUCCEEDED, 2, 2),
        (State.CANCELLED, 0, 0),
    ],
)
def test_every_end_counts_its_attempts_once(end: State, before: int, counted: int) -> None:
    batch = BatchInput(
        batch_id="b",
        wanted=Intent(backend="echo", family="echo"),
        targets=(),
        created_at=datetime.now(UTC),
        count_attempts=True,
        max_failures=counted or 1,
    )
    failures = Failures(batch, BatchCarried(waiting=()))
    if before:
        failures.count(MembersWatched(attempts={"op": before}))
    failures.count(MembersWatched(ended={"op": end}))
    assert (failures.ended_attempts, failures.exceed_limit()) == (counted, counted > 0)


async def test_absent_nodes_never_block_the_window(begin: Begin, fleet: Fleet) -> None:
    """H27: who is slow or away delays nobody else."""
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
    """G12: pause."""
    handle = await begin(2, max_parallel=1)
    await fleet.until_asked("n0")
    await handle.signal(names.SIGNAL_PAUSE, BatchOrder(by="ada"))
    await fleet.until_state(BatchState.PAUSED)
    await fleet.settle("n0", State.SUCCEEDED)
    async with asyncio.timeout(HANGS_S):
        while (progress := await handle.query(Batch.progress)).ended == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (progress.waiting, progress.running) == (1, 0)
    assert fleet.asked == ["n0"], "there was room, and nobody was asked"
    await handle.signal(names.SIGNAL_RESUME, BatchOrder(by="ada"))
    await fleet.until_asked("n1")
    await fleet.settle("n1", State.SUCCEEDED)
    await result(handle)


@pytest.mark.parametrize("in_the_web_ui", [False, True])
async def test_a_cancelled_batch_cancels_its_own_operations_and_starts_no_more(
    begin: Begin, fleet: Fleet, in_the_web_ui: bool
) -> None:
    fleet.verdicts["n1"] = BatchMember(node_id="", node_name="n1", op_id="somebody-elses", joined=True)
    handle = await begin(4, max_parallel=2)
    await fleet.until_asked("n0", "n1")
    if in_the_web_ui:
        await handle.cancel()
    else:
        await handle.signal(names.SIGNAL_CANCEL, BatchOrder(by="ada", reason="wrong version"))
    await fleet.until(lambda fleet: bool(fleet.cancelled))
    fleet._names["n1"] = "somebody-elses"
    await fleet.settle("n1", State.SUCCEEDED)
    await result(handle)
    assert fleet.cancelled == [fleet._names["n0"]], "what it only joined is not its own to cancel"
    assert fleet.asked == ["n0", "n1"]
    assert fleet.closes[-1].state is BatchState.CANCELLED
    [order] = fleet.cancels
    name = f"batch {handle.id.removeprefix('batch:')}"
    why = "cancelled by Temporal Web UI" if in_the_web_ui else "cancelled by ada: wrong version"
    assert (order.why, order.detail) == (Reason.BATCH_CANCELLED, f"{name} {why}")


async def test_conflicts_are_member_verdicts_and_stop_no_other_member(begin: Begin, fleet: Fleet) -> None:
    fleet.verdicts["n0"] = BatchMember(
        node_id="", node_name="n0", verdict=MemberVerdict.CONFLICT, detail="op 7 holds it"
    )
    handle = await begin(2, max_parallel=1)
    await fleet.until_asked("n1")
    await fleet.settle("n1", State.SUCCEEDED)
    assert (await result(handle)).failures == 0


# what a run hands to the next ---------------------------------------------------------------------------------

DERIVED = {
    "_batch": "the input itself, handed on whole",
    "_order_count": "only compared with itself within one run",
    "_row_missing": "the next run begins only after the row was written again",
}
OF_FAILURES = {"members": "failures", "_limit": "", "_counts_attempts": ""}
"""under another name, or from the input"""


def test_every_field_of_a_run_is_carried_or_known_to_be_derived() -> None:
    """A new field of `Batch` or `Failures` needs a decision: carry it, or say why not."""
    batch = BatchInput(
        batch_id="b", wanted=Intent(backend="echo", family="echo"), targets=(), created_at=datetime.now(UTC)
    )
    run = Batch(batch)
    failures = {OF_FAILURES.get(name, name) for name in vars(run._failures)} - {""}
    renamed = {"_open": "open_ops", "_has_slot": "has_turn"}
    own = {renamed.get(name, name.removeprefix("_")) for name in vars(run) if name not in DERIVED}
    assert own - {"failures"} | failures == BatchCarried.model_fields.keys()


FULL = BatchCarried(
    waiting=(Target(node_id="id-3", node_name="n3"),),
    open_ops={"op-1": Target(node_id="id-1", node_name="n1")},
    joined=("op-1",),
    failures=2,
    paused=True,
    cancelled_by="ada",
    ready={"op-1": "run-1"},
    has_turn=("op-1",),
    away=("op-1",),
    attempts={"op-1": 3},
    ended_attempts=4,
    cancel_reason="wrong version",
    state=BatchState.PAUSED,
    detail="why",
)


def test_run_restores_all_carried_fields() -> None:
    empty = BatchCarried(waiting=())
    assert not [name for name in BatchCarried.model_fields if getattr(FULL, name) == getattr(empty, name)]
    batch = BatchInput(
        batch_id="b",
        wanted=Intent(backend="echo", family="echo"),
        targets=(),
        created_at=datetime.now(UTC),
        carried=FULL,
    )
    assert Batch(batch)._carried() == FULL
