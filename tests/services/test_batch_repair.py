"""A Batch run that was ended outside: its row says so, members that wait for a turn go on, the rest has a verdict."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.fleet import FleetActivities
from contracts import batches as names
from contracts.batches import BatchState, CloseBatch, Verdict, batch_workflow_id
from contracts.temporal import FleetWatch, Run
from domain.operation import OPEN, Reason, State
from runtime.temporal import TemporalRuns
from services.batch_repair import ENDED_OUTSIDE, BatchRepair
from store.database import Database
from tests.api.station import until
from tests.services.conftest import Join, now
from tests.services.test_batch_turns import Site


@pytest.fixture
async def site(client: Client, database: Database, join: Join) -> AsyncIterator[Site]:
    site = Site(client, database, [await join() for _ in range(4)])
    async with site.working():
        yield site


@pytest.fixture
def repair(site: Site) -> BatchRepair:
    return BatchRepair(site.batches, site.runs, now)


async def state_of(site: Site) -> tuple[BatchState, str]:
    view = await site.batches.find(site.batch_id)
    assert view is not None
    return view.state, view.detail


async def test_members_that_wait_for_a_turn_go_on_when_their_batch_was_terminated(
    site: Site, repair: BatchRepair
) -> None:
    """Promise 2: nothing waits for a turn that nobody gives any more."""
    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await site.order(names.SIGNAL_PAUSE)
    await site.comes_back(*site.nodes)
    await site.all_wait(Reason.BATCH_TURN, *site.nodes)
    await site.terminate()
    await repair.once()
    assert await state_of(site) == (BatchState.STOPPED, ENDED_OUTSIDE)
    for node_id in await site.at_work(len(site.nodes)):
        await site.finish(node_id)
    for node in site.nodes:
        await until(partial(site.row, node), lambda row: row.state is State.SUCCEEDED)


async def delete(site: Site) -> None:
    """As the Web UI and `temporal workflow delete` do it."""
    execution = WorkflowExecution(workflow_id=batch_workflow_id(site.batch_id))
    request = DeleteWorkflowExecutionRequest(namespace=site.client.namespace, workflow_execution=execution)
    await site.client.workflow_service.delete_workflow_execution(request)
    await until(lambda: site.runs.describe(execution.workflow_id), lambda run: run is None or not run.is_open)


@pytest.mark.parametrize("end", [Site.terminate, delete])
async def test_members_without_a_turn_get_a_verdict_and_running_ones_keep_their_own_end(
    site: Site, repair: BatchRepair, end: Callable[[Site], Awaitable[None]]
) -> None:
    site.present.update(node.id for node in site.nodes)
    await site.begin(max_parallel=1)
    [running] = await site.at_work(1)
    await end(site)
    await asyncio.gather(repair.once(), repair.once())
    members = {member.node_id: member for member in await site.batches.members(site.batch_id)}
    assert members.pop(running).state in OPEN
    assert {(member.state, member.detail) for member in members.values()} == {
        (Verdict.NOT_STARTED, f"not started: the batch {ENDED_OUTSIDE}")
    }
    await site.finish(running)
    view = await until(
        partial(site.batches.find, site.batch_id), lambda view: view is not None and "succeeded" in view.counts
    )
    assert view is not None
    assert view.counts == {"succeeded": 1, "not_started": 3}
    assert (view.state, view.ended_at is not None) == (BatchState.STOPPED, True)


async def test_open_batches_and_ended_ones_are_left_alone(site: Site, repair: BatchRepair) -> None:
    site.present.update(node.id for node in site.nodes)
    await site.begin(max_parallel=0)
    for node_id in await site.at_work(len(site.nodes)):
        await repair.once()
        assert (await state_of(site))[0] is BatchState.RUNNING
        await site.finish(node_id)
    await site.end()
    await repair.once()
    assert await state_of(site) == (BatchState.COMPLETED, "")


async def test_a_batch_that_ends_while_we_look_keeps_the_end_it_wrote(site: Site, repair: BatchRepair) -> None:
    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await site.terminate()

    class EndingNow(TemporalRuns):
        async def describe(self, workflow_id: str, run_id: str | None = None) -> Run | None:
            if workflow_id == batch_workflow_id(site.batch_id):
                done = CloseBatch(batch_id=site.batch_id, state=BatchState.COMPLETED, at=now())
                await site.batches.close(done)
            return await super().describe(workflow_id, run_id)

    await BatchRepair(site.batches, EndingNow(site.client), now).once()
    assert (await state_of(site))[0] is BatchState.COMPLETED


async def test_a_run_whose_row_has_ended_starts_nothing_more(site: Site, repair: BatchRepair) -> None:
    """Temporal restored to an older moment than PostgreSQL: what was cancelled is not carried out."""
    site.present.update(node.id for node in site.nodes)
    await site.begin(max_parallel=1)
    [running] = await site.at_work(1)
    await site.batches.close(CloseBatch(batch_id=site.batch_id, state=BatchState.CANCELLED, at=now()))
    await site.finish(running)
    await site.end()
    states = [member.state for member in await site.batches.members(site.batch_id)]
    assert sorted(states) == ["not_started", "not_started", "not_started", "succeeded"]
    assert (await state_of(site))[0] is BatchState.CANCELLED


async def test_the_watch_over_the_fleet_repairs_batches(site: Site, repair: BatchRepair) -> None:
    class Quiet:
        async def once(self) -> int:
            return 0

        async def sweep(self) -> None: ...
        async def write(self, run_id: str) -> None: ...

    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await site.terminate()
    quiet: Any = Quiet()
    brief = FleetWatch(tick=timedelta(milliseconds=1), rest=timedelta(milliseconds=1))
    fleet = FleetActivities(quiet, repair, quiet, quiet, quiet)
    await ActivityEnvironment().run(fleet.watch_fleet, brief)
    assert (await state_of(site))[0] is BatchState.STOPPED
