"""The permit: asked before every command, answered by the row. One contract for PostgreSQL and for the fake."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol as Interface

import pytest

from contracts.dispatch import CancelPending, Granted, Held, NotAdmitted, RowEnded
from contracts.temporal import RowEnd
from domain.operation import Reason, State
from services.ports import Permits
from store.database import Database
from store.holds import Holds
from store.operations import OperationTable
from store.permits import PermitTable
from tests.activities.permits import MemoryPermits
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition

END = RowEnd(state=State.CANCELLED, reason=Reason.REQUESTED, detail="wrong shelf")


class Scene(Interface):
    """One operation and what happens to its row."""

    @property
    def permits(self) -> Permits: ...
    @property
    def op_id(self) -> str: ...

    async def admit(self) -> None: ...
    async def hold(self) -> None: ...
    async def cancel(self) -> None: ...
    async def end(self) -> None: ...
    async def sent(self) -> int: ...


class InMemory:
    def __init__(self) -> None:
        self.permits = MemoryPermits()
        self.permits.is_admitted = False
        self.op_id = "op"

    async def admit(self) -> None:
        self.permits.is_admitted = True

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
        await self._operations.insert_queued(transition(self.request, State.QUEUED, seq=0))

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
    assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=False) == NotAdmitted()
    await scene.admit()
    assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=False) == Granted()
    assert await scene.sent() == 1


async def test_permit_for_an_ended_operation_brings_its_end(scene: Scene) -> None:
    await scene.admit()
    await scene.end()
    for on_node in (False, True):
        assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=on_node) == RowEnded(end=END)


async def test_hold_stops_what_is_not_on_its_node(scene: Scene) -> None:
    await scene.admit()
    await scene.hold()
    assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=False) == Held(why="freeze, by ada")
    assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=True) == Granted()


@pytest.mark.parametrize("token", ["a", "b"])
async def test_mark_that_two_have_used_is_taken_back_by_neither(scene: Scene, token: str) -> None:
    """The command of the other one may have arrived."""
    await scene.admit()
    await scene.permits.permit(scene.op_id, 1, token="a", on_node=False)
    await scene.permits.permit(scene.op_id, 1, token="b", on_node=False)
    await scene.permits.withdraw(scene.op_id, 1, token=token)
    assert await scene.sent() == 1


async def test_nothing_is_sent_while_a_cancel_is_pending(scene: Scene) -> None:
    """A LocalAI worker alone is sent the same again, to attach to its work."""
    await scene.admit()
    await scene.cancel()
    for on_node in (False, True):
        assert await scene.permits.permit(scene.op_id, 1, token="a", on_node=on_node) == CancelPending(by="ada")
    attached = await scene.permits.permit(scene.op_id, 1, token="a", on_node=True, while_cancelling=True)
    assert attached == Granted()


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
    """Either the command goes out and the end without the node's word is refused, or nothing goes out."""
    for _ in range(30):
        scene = OnPostgres(database)
        await scene.admit()
        operations = OperationTable(database)
        cancelled = transition(scene.request, State.CANCELLED, seq=1, ended_at=NOON)
        permit, recorded = await asyncio.gather(
            scene.permits.permit(scene.op_id, 1, token="a", on_node=False),
            operations.record(cancelled, only_unsent=True),
        )
        assert isinstance(permit, Granted) != recorded.written
