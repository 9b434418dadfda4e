"""Permits, requested before every command. One contract test for PostgreSQL and for the fake."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol as Interface

import pytest

from nodesmith.contracts.temporal.batches import BatchInput, BatchState, CloseBatch, Target, member_op_id
from nodesmith.contracts.temporal.dispatch import CancelPending, HeldBack, NotAdmitted, PermitGranted, RowEnded
from nodesmith.contracts.temporal.operations import OperationRequest, RowEnd
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.operation import Reason, State
from nodesmith.services.ports import Permits
from nodesmith.store.database import Database
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.hold import Holds
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.permits import PermitTable
from tests.fakes.permits import MemoryPermits
from tests.services.conftest import orders_on
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition

END = RowEnd(state=State.CANCELLED, reason=Reason.REQUESTED, detail="wrong shelf")


class Scene(Interface):
    """One operation and the changes of its row."""

    @property
    def permits(self) -> Permits: ...
    @property
    def op_id(self) -> str: ...

    async def admit(self) -> None: ...
    async def write_row(self) -> None: ...
    async def write_order(self) -> None: ...
    async def hold(self) -> None: ...
    async def cancel(self) -> None: ...
    async def end(self) -> None: ...
    async def sent(self) -> int: ...


class InMemory:
    def __init__(self) -> None:
        self.permits = MemoryPermits()
        self.permits.request = a_request()
        self.permits.is_admitted = False
        self.op_id = "op"

    async def admit(self) -> None:
        self.permits.is_admitted = True

    async def write_row(self) -> None:
        self.permits.has_order = False

    async def write_order(self) -> None:
        self.permits.has_order = True

    async def hold(self) -> None:
        self.permits.hold = "freeze, by ada"

    async def cancel(self) -> None:
        self.permits.cancelled_by = "ada"

    async def end(self) -> None:
        self.permits.end = END

    async def sent(self) -> int:
        return self.permits.sent


class OnPostgres:
    def __init__(self, database: Database) -> None:
        self.permits = PermitTable(database)
        self.request = a_request()
        self.op_id = self.request.op_id
        self._database = database
        self._operations = OperationTable(database)

    async def admit(self) -> None:
        await self.write_order()
        await self.write_row()

    async def write_row(self) -> None:
        await self._operations.insert_queued(transition(self.request, State.QUEUED, seq=0))

    async def write_order(self) -> None:
        await orders_on(self._database).add([self.request])

    async def hold(self) -> None:
        await Holds(self._database).hold(reason="freeze", by="ada", now=NOON)

    async def cancel(self) -> None:
        await self._operations.record(transition(self.request, State.CANCELLING, cancelled_by="ada"))

    async def end(self) -> None:
        ended = transition(self.request, END.state, reason=END.reason, detail=END.detail, ended_at=NOON)
        await self._operations.record(ended)

    async def sent(self) -> int:
        recorded = await self._operations.record(transition(self.request, State.EXPIRED, seq=9), only_unsent=True)
        return 0 if recorded.written else 1


@pytest.fixture(params=["memory", "postgres"])
async def scene(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Scene]:
    if request.param == "memory":
        yield InMemory()
        return
    yield OnPostgres(database)
    await Holds(database).release(by="ada", now=NOON)


async def test_permit_needs_an_admitted_operation(scene: Scene) -> None:
    """Neither the row nor the order alone is enough: the row is not marked as sent."""
    await scene.write_row()
    assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=False) == NotAdmitted(has_order=False)
    await scene.admit()
    granted = await scene.permits.permit(scene.op_id, 1, token="a", on_node=False)
    assert isinstance(granted, PermitGranted)
    assert '"op_id":' in granted.order.payload
    assert await scene.sent() == 1


async def test_order_without_a_row_lets_the_run_write_it(scene: Scene) -> None:
    await scene.write_order()
    assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=False) == NotAdmitted(has_order=True)
    assert await scene.sent() == 0


async def test_permit_for_an_ended_operation_returns_its_end(scene: Scene) -> None:
    await scene.admit()
    await scene.end()
    for on_node in (False, True):
        assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=on_node) == RowEnded(end=END)


async def test_hold_stops_what_is_not_on_its_node(scene: Scene) -> None:
    await scene.admit()
    await scene.hold()
    assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=False) == HeldBack(why="freeze, by ada")
    assert isinstance(await scene.permits.permit(scene.op_id, 1, token="a", on_node=True), PermitGranted)


@pytest.mark.parametrize("token", ["a", "b"])
async def test_shared_mark_is_withdrawn_by_neither_user(scene: Scene, token: str) -> None:
    """The command of the other user may have arrived."""
    await scene.admit()
    await scene.permits.permit(scene.op_id, 1, token="a", on_node=False)
    await scene.permits.permit(scene.op_id, 1, token="b", on_node=False)
    await scene.permits.withdraw(scene.op_id, 1, token=token)
    assert await scene.sent() == 1


async def test_nothing_is_sent_while_a_cancel_is_pending(scene: Scene) -> None:
    """Only a LocalAI worker gets the same command again, to attach to its work."""
    await scene.admit()
    await scene.cancel()
    for on_node in (False, True):
        assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=on_node) == CancelPending(by="ada")
    attached = await scene.permits.permit(scene.op_id, 1, token="a", on_node=True, while_cancelling=True)
    assert isinstance(attached, PermitGranted)


async def test_withdrawn_mark_leaves_nothing_sent(scene: Scene) -> None:
    await scene.admit()
    await scene.permits.permit(scene.op_id, 1, token="a", on_node=False)
    await scene.permits.withdraw(scene.op_id, 1, token="a")
    assert await scene.sent() == 0


async def test_withdrawn_second_decision_leaves_the_first_one_sent(scene: Scene) -> None:
    await scene.admit()
    for decision, token in ((1, "a"), (2, "b")):
        await scene.permits.permit(scene.op_id, decision, token=token, on_node=False)
    await scene.permits.withdraw(scene.op_id, 2, token="b")
    assert await scene.sent() == 1


async def test_permit_and_end_at_the_same_instant_agree(database: Database) -> None:
    """Either the command is sent and an end without an outcome is refused, or nothing is sent."""
    for _ in range(30):
        scene = OnPostgres(database)
        await scene.admit()
        operations = OperationTable(database)
        cancelled = transition(scene.request, State.CANCELLED, seq=1, ended_at=NOON)
        permit, recorded = await asyncio.gather(
            scene.permits.permit(scene.op_id, 1, token="a", on_node=False),
            operations.record(cancelled, only_unsent=True),
        )
        assert isinstance(permit, PermitGranted) != recorded.written


def a_batch(request: OperationRequest) -> BatchInput:
    target = Target(node_id=request.node_id, node_name=request.node_name)
    return BatchInput(batch_id=request.batch_id or "", wanted=request.wanted, targets=(target,), created_at=NOON)


STOPPED = "batch {} stopped after 1 failure"


@pytest.mark.parametrize(
    ("state", "standing", "expected"),
    [
        (BatchState.STOPPED, (State.WAITING, Reason.NODE_AWAY), Reason.BATCH_STOPPED),
        (BatchState.STOPPED, (State.WAITING, Reason.BATCH_TURN), Reason.BATCH_STOPPED),
        (BatchState.STOPPED, (State.QUEUED, None), None),
        (BatchState.CANCELLING, (State.QUEUED, None), Reason.BATCH_CANCELLED),
        (BatchState.CANCELLED, (State.WAITING, Reason.HELD), Reason.BATCH_CANCELLED),
        (BatchState.PAUSED, (State.WAITING, Reason.NODE_AWAY), None),
    ],
)
async def test_members_of_a_stopped_batch_get_no_permit(
    database: Database, state: BatchState, standing: tuple[State, Reason | None], expected: Reason | None
) -> None:
    """A member with a slot continues when its batch stops; later ones, and all of a cancelled batch, do not start."""
    batch_id, node_id = new_op_id(), new_op_id()
    request = a_request(op_id=member_op_id(batch_id, node_id), node_id=node_id, batch_id=batch_id)
    batches, permits = Batches(database), PermitTable(database)
    await batches.open(a_batch(request))
    await orders_on(database).add([request])
    await OperationTable(database).record(transition(request, standing[0], seq=1, reason=standing[1]))
    await batches.close(CloseBatch(batch_id=batch_id, state=state, detail="batch stopped after 1 failure", at=NOON))
    permit = await permits.permit(request.op_id, 1, token="a", on_node=False)
    reported = CancelPending(by=f"batch {batch_id}", why=expected or Reason.REQUESTED, detail=STOPPED.format(batch_id))
    assert permit == reported if expected else isinstance(permit, PermitGranted)


async def test_retried_member_gets_a_permit_independently_of_its_batch(database: Database) -> None:
    batch_id, node_id = new_op_id(), new_op_id()
    request = a_request(op_id=new_op_id(), node_id=node_id, batch_id=batch_id)
    batches = Batches(database)
    await batches.open(a_batch(request))
    await orders_on(database).add([request])
    await OperationTable(database).record(transition(request, State.WAITING, seq=1, reason=Reason.NODE_AWAY))
    await batches.close(CloseBatch(batch_id=batch_id, state=BatchState.CANCELLED, at=NOON))
    permit = await PermitTable(database).permit(request.op_id, 1, token="a", on_node=False)
    assert isinstance(permit, PermitGranted)
