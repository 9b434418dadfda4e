"""Orders to a batch that arrive while it still records an earlier one."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from nodesmith.contracts.temporal import batches as names
from nodesmith.contracts.temporal.batches import BatchOrder, BatchState
from nodesmith.domain.operation import State
from tests.deadlines import HANGS_S
from tests.fakes.batch_activities import Fleet, Handle, start, worker_of

ADA = BatchOrder(by="ada")


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
async def batch(client: Client, fleet: Fleet) -> AsyncIterator[Handle]:
    """Two nodes one after the other; the first has been asked."""
    async with worker_of(client, fleet) as queue:
        handle = await start(client, queue, 2, max_parallel=1)
        await fleet.until_asked("n0")
        await fleet.until_watched("n0")
        yield handle


async def pause_slowly(batch: Handle, fleet: Fleet) -> None:
    """The batch has heard of it, and the row does not say so yet."""
    fleet.may_close.clear()
    await batch.signal(names.SIGNAL_PAUSE, ADA)
    await asyncio.wait_for(fleet.is_closing.wait(), HANGS_S)


async def test_cancel_during_the_write_of_a_pause_is_carried_out(batch: Handle, fleet: Fleet) -> None:
    """The first node never ends by itself: only the cancel can end the batch."""
    await pause_slowly(batch, fleet)
    await batch.signal(names.SIGNAL_CANCEL, ADA)
    fleet.may_close.set()
    await asyncio.wait_for(batch.result(), HANGS_S)
    assert fleet.closes[-1].state is BatchState.CANCELLED
    assert fleet.asked == ["n0"]


async def test_cancel_of_a_batch_without_open_members_during_the_write_of_a_pause(client: Client, fleet: Fleet) -> None:
    """Nobody is left who could end and wake the batch: it waits for an order, and has had it already."""
    async with worker_of(client, fleet) as queue:
        batch = await start(client, queue, 2, max_parallel=1)
        await fleet.until_asked("n0")
        await pause_slowly(batch, fleet)
        await fleet.settle("n0", State.SUCCEEDED)
        await batch.signal(names.SIGNAL_CANCEL, ADA)
        fleet.may_close.set()
        await asyncio.wait_for(batch.result(), HANGS_S)
    assert fleet.closes[-1].state is BatchState.CANCELLED


async def test_resume_during_the_write_of_a_pause_is_written_down(batch: Handle, fleet: Fleet) -> None:
    await pause_slowly(batch, fleet)
    await batch.signal(names.SIGNAL_RESUME, ADA)
    fleet.may_close.set()
    await fleet.until(lambda fleet: [close.state for close in fleet.closes] == [BatchState.PAUSED, BatchState.RUNNING])
    for node in ("n0", "n1"):
        await fleet.until_asked(node)
        await fleet.settle(node, State.SUCCEEDED)
    await asyncio.wait_for(batch.result(), HANGS_S)
