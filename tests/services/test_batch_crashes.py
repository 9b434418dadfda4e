"""Crashes of API and worker at every step of a batch: one operation per target, and none twice."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from nodesmith.activities.batches import BatchActivities
from nodesmith.activities.records import RecordActivities
from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.batches import (
    BatchInput,
    BatchProgress,
    BatchState,
    Target,
    batch_workflow_id,
    member_op_id,
)
from nodesmith.contracts.temporal.dispatch import DISPATCH, Dispatched, DispatchTask, Ended
from nodesmith.contracts.temporal.operations import Intent, OperationInput, Policy
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.node import Node
from nodesmith.domain.operation import State
from nodesmith.domain.operation_filter import OperationFilter, OperationScope
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.batches.batches import BatchService
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.operations.verified_records import VerifiedRecords
from nodesmith.services.requested_work import RequestedBatch
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.idempotency import IdempotencyKeys
from nodesmith.store.operations.operations import OperationTable
from nodesmith.workflows.backend_operation import BackendOperation
from nodesmith.workflows.batch import Batch
from tests.deadlines import HANGS_S
from tests.fakes.node_link import AcceptingProofs
from tests.fakes.workers import EndingWorker
from tests.services.conftest import Join, now, orders_on

NEVER = 0
BEFORE_AND_AFTER = 2
OF_THE_BATCH, OF_A_MEMBER, OF_THE_API = 4, 2, 3
"""open, nodes, note, close; start, insert; start, read the started batch, open"""
SOON, LATE = timedelta(milliseconds=10), timedelta(milliseconds=500)
"""the next worker starts while the operations run, or after they have ended"""


class Crash:
    """Crashes the process at its n-th step: from then on that attempt has no effect."""

    def __init__(self, at: int, next_try: timedelta = SOON) -> None:
        self.steps = 0
        self._at = at
        self._next_try = next_try
        self._dead = ""

    def step(self) -> None:
        attempt = f"{activity.info().activity_id}/{activity.info().attempt}" if activity.in_activity() else "api"
        if attempt != self._dead:
            self.steps += 1
            if self.steps != self._at:
                return
            self._dead = attempt
        raise ApplicationError("killed", next_retry_delay=self._next_try)


class Mortal:
    """A port whose caller may crash before and after each call."""

    def __init__(self, port: Any, step: Callable[[], None]) -> None:
        self._port = port
        self._step = step

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call: Callable[..., Awaitable[Any]] = getattr(self._port, name)

        async def mortal(*arguments: Any, **named: Any) -> Any:
            self._step()
            answer = await call(*arguments, **named)
            self._step()
            return answer

        return call if name == "states" else mortal  # polled, and read only


class Plant:
    """Real rows and real runs; simulated nodes execute commands at once and count them."""

    def __init__(self, client: Client, database: Database, targets: Sequence[Node]) -> None:
        self.client = client
        self.targets = targets
        self.operations = OperationTable(database)
        self.nodes = Nodes(database)
        self.batches = Batches(database)
        self._trail = AuditTrail(database)
        self.runs = TemporalRuns(client, queue=f"test-{uuid.uuid4()}")
        self._begun: set[tuple[str, str, int]] = set()
        self._crashes: dict[str, Crash] = {}

    @property
    def done(self) -> Counter[str]:
        return Counter(op_id for op_id, _, _ in self._begun)

    @activity.defn(name=DISPATCH)
    async def dispatch(self, task: DispatchTask) -> Dispatched:
        """Like a node, begin once for each decision: a workflow task that is executed again sends its command again."""
        self._begun.add((task.request.op_id, activity.info().workflow_run_id or "", task.decision))
        return Dispatched(result=Ended(outcome=Outcome(op_id=task.request.op_id, result=Result.SUCCEEDED)))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Workers that crash as the batch's crash plan says, and restart."""
        runs, operations = Mortal(self.runs, self._step), Mortal(self.operations, self._step)
        nodes, batches = Mortal(self.nodes, self._step), Mortal(self.batches, self._step)
        ports: Any = (OperationLock(cast("Any", operations), cast("Any", runs), None), nodes, operations, runs, batches)
        batch = BatchActivities(*ports)
        steps: list[Callable[..., Any]] = [
            *(batch.open_batch, batch.admit_members, batch.watch_members, batch.close_batch),
            RecordActivities(VerifiedRecords(self.operations, AcceptingProofs()), self._trail).record,
        ]
        queue = self.runs.queue
        async with (
            EndingWorker(self.client, task_queue=queue, workflows=[Batch], activities=steps),
            EndingWorker(
                self.client,
                task_queue=names.node_queue(queue),
                workflows=[BackendOperation],
                activities=[
                    self.dispatch,
                    RecordActivities(VerifiedRecords(self.operations, AcceptingProofs()), self._trail).record,
                ],
            ),
        ):
            yield

    def _step(self) -> None:
        if (crash := self._crashes.get(activity.info().workflow_id or "")) is not None:
            crash.step()

    async def run_batch(self, crash: Crash) -> BatchProgress:
        batch_id, family = new_op_id(), f"backend-{uuid.uuid4()}"
        self._crashes[batch_workflow_id(batch_id)] = crash
        batch = BatchInput(
            batch_id=batch_id,
            wanted=Intent(backend=family, family=family, version="1", uri="/artifacts/echo-1.tar.gz"),
            targets=tuple(Target(node_id=node.id, node_name=node.name) for node in self.targets),
            created_at=now(),
        )
        await self.runs.start_batch(batch)
        return await self.end_of(batch_id)

    async def end_of(self, batch_id: str) -> BatchProgress:
        handle = self.client.get_workflow_handle_for(Batch.run, batch_workflow_id(batch_id))
        return await asyncio.wait_for(handle.result(), HANGS_S)

    async def assert_once_each(self, batch_id: str) -> None:
        rows = (await self.operations.listing(OperationFilter(batch=batch_id), scope=OperationScope.ALL)).operations
        planned = {node.id: member_op_id(batch_id, node.id) for node in self.targets}
        assert sorted(row.node_id for row in rows) == sorted(planned), "targets = operations"
        assert {row.node_id: row.op_id for row in rows} == planned
        assert {row.state for row in rows} == {State.SUCCEEDED}
        for op_id in planned.values():
            assert self.done[op_id] == 1, "no node began twice"
            reported = [event.state for event in await self.operations.timeline(op_id)]
            assert reported.count(State.SUCCEEDED) == 1
        view = await self.batches.find(batch_id)
        assert view is not None
        assert (view.state, view.counts) == (BatchState.COMPLETED, {"succeeded": len(planned)})


@pytest.fixture
async def plant(client: Client, database: Database, join: Join) -> AsyncIterator[Plant]:
    plant = Plant(client, database, [await join(), await join()])
    async with plant.working():
        yield plant


@pytest.fixture
def service(plant: Plant, database: Database, admission: Admission) -> BatchService:
    return BatchService(
        nodes=plant.nodes,
        inventory=InventoryTable(database),
        batches=plant.batches,
        runs=plant.runs,
        intents=admission.intents,
        orders=orders_on(database),
        keys=IdempotencyKeys(database),
        policy=Policy(),
        clock=now,
    )


async def test_worker_crash_at_any_step_of_a_batch_admits_each_target_once(plant: Plant) -> None:
    """Promise 2. Before and after every step of the worker: targets = operations."""
    undisturbed = Crash(NEVER)
    await plant.run_batch(undisturbed)
    assert undisturbed.steps >= BEFORE_AND_AFTER * (OF_THE_BATCH + OF_A_MEMBER * len(plant.targets))
    deaths = [Crash(at, (SOON, LATE)[at // 2 % 2]) for at in range(1, undisturbed.steps + 1)]
    for progress in await asyncio.gather(*(plant.run_batch(crash) for crash in deaths)):
        assert (progress.ended, progress.failures) == (len(plant.targets), 0)
        await plant.assert_once_each(progress.batch_id)


async def test_api_crash_at_any_step_of_a_batch_start_starts_it_once(plant: Plant, service: BatchService) -> None:
    """Promise 2. Repeated at another replica with the same Idempotency-Key, it is the same batch."""
    request = RequestedBatch(backend="echo", nodes=[node.name for node in plant.targets])
    for at in range(1, BEFORE_AND_AFTER * OF_THE_API + 1):
        crash, key = Crash(at), f"k{at}"
        mortal: Any = {"batches": Mortal(plant.batches, crash.step), "runs": Mortal(plant.runs, crash.step)}
        with pytest.raises(ApplicationError):
            await replace(service, **mortal).start(request, actor="ada", idempotency_key=key)
        again = await service.start(request, actor="ada", idempotency_key=key)
        await plant.end_of(again.batch_id)
        repeated = await service.start(request, actor="ada", idempotency_key=key)
        assert (repeated.batch_id, repeated.operations) == (again.batch_id, again.operations)
        await plant.assert_once_each(again.batch_id)


async def test_a_batch_that_has_started_is_accepted_whatever_happens_to_its_row(
    plant: Plant, service: BatchService
) -> None:
    """Design 2: the 202 is given once the workflow has started; the workflow writes the row too."""
    unwritable: Any = Unwritable()
    request = RequestedBatch(backend="echo", nodes=[plant.targets[0].name])
    accepted = await replace(service, batches=unwritable).start(request, actor="ada")
    await plant.end_of(accepted.batch_id)
    assert await plant.batches.find(accepted.batch_id) is not None


async def test_process_resumed_after_the_batch_ended_starts_nothing(plant: Plant) -> None:
    """Promise 2: a process paused before it could start the run resumes when the run has ended."""
    await plant.run_batch(Crash(NEVER))
    [op_id, *_] = plant.done
    row, story = await plant.operations.find(op_id), await plant.operations.timeline(op_id)
    request = await plant.operations.request(op_id)
    assert row is not None
    assert request is not None
    late = OperationLock(plant.operations, plant.runs, None)
    assert await late.admit(OperationInput(request=request)) == (op_id, False)
    run = await plant.runs.describe(row.workflow_id)
    assert run is not None
    assert (run.run_id, run.is_open) == (row.run_id, False)
    assert await plant.operations.find(op_id) == row
    assert await plant.operations.timeline(op_id) == story
    assert plant.done[op_id] == 1


class Unwritable:
    """A table that fails when the API writes."""

    async def open(self, _: BatchInput) -> None:
        raise ServiceUnavailable("PostgreSQL does not answer.")
