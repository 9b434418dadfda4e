"""A batch: a sliding window over frozen targets, on the real Temporal server, with operations that the test plays."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from temporalio.client import Client, WorkflowFailureError

from contracts import batches as names
from contracts.batches import BatchOrder, BatchProgress, BatchState, Member, Verdict
from domain.operation import State
from tests.workflows.played_fleet import Fleet, Handle, start, worker_of
from workflows.batch import Batch

Begin = Callable[..., Awaitable[Handle]]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
async def begin(client: Client, fleet: Fleet) -> AsyncIterator[Begin]:
    async with worker_of(client, fleet) as queue:
        yield partial(start, client, queue)


async def result(handle: Handle) -> BatchProgress:
    return await asyncio.wait_for(handle.result(), 30)


async def test_no_more_than_the_window_run_at_once_and_all_get_their_turn(begin: Begin, fleet: Fleet) -> None:
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
    assert {member.verdict for member in left} == {Verdict.NOT_STARTED}
    assert fleet.closes[-1].state is BatchState.STOPPED


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
    async with asyncio.timeout(30):
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
