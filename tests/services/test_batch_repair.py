"""Repair of batches whose run was ended from outside: row ended, waiting members continue, others get a verdict."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from nodesmith.activities.fleet_monitor import FleetActivities
from nodesmith.contracts.nats.messages import Result
from nodesmith.contracts.temporal import batches as names
from nodesmith.contracts.temporal.batches import BatchState, CloseBatch, MemberVerdict, batch_workflow_id
from nodesmith.contracts.temporal.operations import FleetWatch, Run
from nodesmith.domain.operation import OPEN, Reason, State
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.batches.repair import ENDED_OUTSIDE, BatchRepair
from nodesmith.store.database import Database
from tests.api.station import until
from tests.services.conftest import Join, now
from tests.services.test_batch_slots import Site


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


async def test_members_waiting_for_a_slot_continue_when_their_batch_was_terminated(
    site: Site, repair: BatchRepair
) -> None:
    """Promise 2: no member waits for a turn that no run can give."""
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
    """Delete the run like the Web UI and `temporal workflow delete`."""
    execution = WorkflowExecution(workflow_id=batch_workflow_id(site.batch_id))
    request = DeleteWorkflowExecutionRequest(namespace=site.client.namespace, workflow_execution=execution)
    await site.client.workflow_service.delete_workflow_execution(request)
    await until(site.runs.open_batches, lambda listed: site.batch_id not in listed)


@pytest.mark.parametrize("end", [Site.terminate, delete])
async def test_members_without_a_slot_get_a_verdict_and_running_ones_keep_their_own_end(
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
        (MemberVerdict.NOT_STARTED, f"not started: the batch {ENDED_OUTSIDE}")
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


async def test_batch_that_ends_during_repair_keeps_its_own_end(site: Site, repair: BatchRepair) -> None:
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
    """Temporal was restored from an older backup than PostgreSQL: a cancelled batch is not executed."""
    site.present.update(node.id for node in site.nodes)
    await site.begin(max_parallel=1)
    [running] = await site.at_work(1)
    await site.batches.close(CloseBatch(batch_id=site.batch_id, state=BatchState.CANCELLED, at=now()))
    await site.finish(running)
    await site.end()
    states = [member.state for member in await site.batches.members(site.batch_id)]
    assert sorted(states) == ["not_started", "not_started", "not_started", "succeeded"]
    assert (await state_of(site))[0] is BatchState.CANCELLED


async def test_fleet_monitor_repairs_batches(site: Site, repair: BatchRepair) -> None:
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


async def test_members_that_return_to_a_stopped_batch_whose_run_is_gone_do_not_begin(
    site: Site, repair: BatchRepair
) -> None:
    """G12: members that return late do not start in a stopped batch, whether or not its run exists."""
    early, late = site.nodes[0], site.nodes[1:]
    site.present.add(early.id)
    await site.begin(max_failures=1, max_parallel=0)
    await site.at_work(1)
    await site.all_wait(Reason.NODE_AWAY, *late)
    await site.finish(early.id, Result.FAILED)
    await until(partial(state_of, site), lambda said: said[0] is BatchState.STOPPED)
    await site.terminate()
    await repair.once()
    await site.comes_back(*late)
    for node in late:
        row = await until(partial(site.row, node), lambda row: row.state not in OPEN)
        why = f"batch {site.batch_id} stopped after 1 failure"
        assert (row.state, row.reason, row.detail) == (State.CANCELLED, Reason.BATCH_STOPPED, why)
    assert site.most_at_work == 1


async def test_members_of_a_cancelled_batch_whose_run_is_gone_are_cancelled(site: Site, repair: BatchRepair) -> None:
    """The run was terminated after it wrote the cancel and before it cancelled its members."""
    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await site.terminate()
    said = CloseBatch(batch_id=site.batch_id, state=BatchState.CANCELLING, detail="batch cancelled by ada", at=now())
    await site.batches.close(said)
    first, *others = site.nodes
    await site.comes_back(first)  # before the monitor's next tick
    row = await until(partial(site.row, first), lambda row: row.state not in OPEN)
    assert (row.state, row.reason) == (State.CANCELLED, Reason.BATCH_CANCELLED)
    await repair.once()
    for node in others:
        row = await until(partial(site.row, node), lambda row: row.state not in OPEN)
        assert (row.state, row.detail) == (State.CANCELLED, f"batch {site.batch_id} cancelled by ada")
    assert await state_of(site) == (BatchState.CANCELLED, "batch cancelled by ada")
    assert site.most_at_work == 0


async def forget(database: Database, batch_id: str) -> None:
    """PostgreSQL was restored from a backup older than the batch."""
    async with database.session() as session:
        await session.execute(text("DELETE FROM operations WHERE batch_id = :id"), {"id": batch_id})
        await session.execute(text("DELETE FROM batches WHERE batch_id = :id"), {"id": batch_id})


async def test_a_run_whose_row_is_missing_writes_it_again(site: Site, repair: BatchRepair, database: Database) -> None:
    first, second = site.nodes[0], site.nodes[1]
    site.present.update(node.id for node in site.nodes)
    await site.begin(max_parallel=1)
    [running] = await site.at_work(1)
    await site.finish(running)
    [running] = await site.at_work(1)
    await site.order(names.SIGNAL_PAUSE)
    await until(partial(state_of, site), lambda said: said[0] is BatchState.PAUSED)
    await forget(database, site.batch_id)
    await repair.once()
    view = await until(
        partial(site.batches.find, site.batch_id),
        lambda view: view is not None and view.state is BatchState.PAUSED,
    )
    assert view is not None
    states = {member.node_id: member.state for member in await site.batches.members(site.batch_id)}
    assert (states[first.id], len(states)) == (MemberVerdict.UNKNOWN, len(site.nodes))
    assert states[second.id] == "waiting_for_turn", "its own run writes its row again, as Repair asks it to"


async def test_batches_of_other_workers_are_left_alone(site: Site, client: Client, database: Database) -> None:
    """Two deployments may share a namespace: the rows of the other one are in its own database."""
    await site.begin()
    await site.all_wait(Reason.NODE_AWAY, *site.nodes)
    await until(site.runs.open_batches, lambda listed: site.batch_id in listed)
    assert site.batch_id not in await TemporalRuns(client, queue="of-others").open_batches()
