"""Orders on the real store: written with the row, newer than all others of node and family, renewed while open."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from nodesmith.contracts.nats.orders import Order
from nodesmith.contracts.nats.wire import Signed
from nodesmith.contracts.temporal.operations import Projection
from nodesmith.domain.errors import NotRetryable, OrderNotSigned
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.operation import Reason, State
from nodesmith.runtime.signing import ORDER, SigningKey
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.orders import OrderRenewals, Orders
from nodesmith.store.database import Database
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.orders import OrderTable
from nodesmith.store.operations.permits import PermitTable
from nodesmith.store.tables.core import OrderRow
from tests.orders import shared_keyring
from tests.services.conftest import Join, now, orders_on
from tests.store.transitions import a_request, transition


class SimulatedRuns:
    def __init__(self) -> None:
        self.woken: list[str] = []

    async def node_back(self, workflow_id: str, node_id: str) -> None:
        self.woken.append(node_id)


async def ordered(database: Database, op_id: str) -> Order:
    order = await orders_on(database).read(op_id)
    assert order is not None
    return order


def queued(op_id: str = "", **facts: str) -> Projection:
    return transition(a_request(op_id=op_id, node_id=facts.pop("node_id", new_op_id()), **facts), State.QUEUED, seq=0)


async def test_order_is_written_with_the_row_and_says_what_was_admitted(database: Database) -> None:
    first = queued()
    await orders_on(database).admit(first)
    order = await ordered(database, first.request.op_id)
    assert (order.node, order.uri, order.by) == (first.request.node_id, first.request.wanted.uri, "admin")
    assert order.exp - order.iat == 24 * 3600 * 1000
    assert await OperationTable(database).find(first.request.op_id) is not None


async def test_each_order_is_newer_than_all_others_whatever_the_clocks_say(database: Database) -> None:
    """The clock of one replica is an hour ahead of the other's."""
    node_id = new_op_id()
    ahead = replace(orders_on(database), clock=lambda: now() + timedelta(hours=1))
    given: list[Order] = []
    for orders in (ahead, orders_on(database), ahead, orders_on(database)):
        first = queued(node_id=node_id)
        await orders.admit(first)
        given.append(await ordered(database, first.request.op_id))
    iats = [order.iat for order in given]
    assert iats == sorted(set(iats))


async def test_orders_of_one_instant_are_all_different(database: Database) -> None:
    node_id, instant = new_op_id(), now()
    orders = replace(orders_on(database), clock=lambda: instant)
    firsts = [queued(node_id=node_id) for _ in range(4)]
    await asyncio.gather(*(orders.admit(first) for first in firsts))
    given = [await ordered(database, first.request.op_id) for first in firsts]
    assert len({order.iat for order in given}) == len(firsts)


async def test_existing_order_is_never_replaced(database: Database) -> None:
    first = queued()
    await orders_on(database).admit(first)
    evil = first.request.model_copy(
        update={"wanted": first.request.wanted.model_copy(update={"uri": "https://evil.example/x"})}
    )
    await orders_on(database).add([evil])
    assert (await ordered(database, first.request.op_id)).uri == first.request.wanted.uri


@pytest.mark.parametrize("reason", [Reason.ORDER, Reason.NODE_AWAY])
async def test_order_of_an_open_operation_is_renewed_and_only_its_end_changes(
    database: Database, reason: Reason
) -> None:
    first = queued()
    long_ago = replace(orders_on(database), clock=lambda: now() - timedelta(hours=13))
    await long_ago.admit(first)
    await OperationTable(database).record(transition(first.request, State.WAITING, reason=reason))
    before, runs = await ordered(database, first.request.op_id), SimulatedRuns()
    await OrderRenewals(shared_keyring(), OrderTable(database), runs, now).once()
    after = await ordered(database, first.request.op_id)
    assert after.exp > before.exp
    assert after == before.model_copy(update={"exp": after.exp})
    assert (first.request.node_id in runs.woken) is (reason is Reason.ORDER)


async def test_order_that_no_key_of_ours_signed_is_neither_renewed_nor_retried(
    database: Database, admission: Admission, operations: OperationTable, join: Join
) -> None:
    """An attacker with write access to PostgreSQL has no signing key."""
    node = await join()
    request = a_request(node_id=node.id)
    forger = Orders(_Forger(), OrderTable(database), operations, lambda: now() - timedelta(hours=13))
    await forger.admit(transition(request, State.QUEUED, seq=0))
    assert await OrderRenewals(shared_keyring(), OrderTable(database), SimulatedRuns(), now).once() == 0
    await operations.record(transition(request, State.FAILED, seq=2, at=2, ended_at=now()))
    with pytest.raises(OrderNotSigned):
        await admission.retry(request.op_id, actor="ada")


async def test_order_of_another_operation_is_not_retried(
    admission: Admission, operations: OperationTable, join: Join, database: Database
) -> None:
    """An attacker with write access to PostgreSQL copies a signed order into the row of another operation."""
    node, other = await join(), await join()
    failed, signed = queued(node_id=node.id), queued(node_id=other.id)
    for first in (failed, signed):
        await orders_on(database).admit(first)
    await operations.record(transition(failed.request, State.FAILED, seq=3, at=3, ended_at=now()))
    async with database.session() as session:
        row = (OrderRow.kid, OrderRow.payload, OrderRow.signature)
        theirs = (await session.execute(select(*row).where(OrderRow.op_id == signed.request.op_id))).one()
        mine = update(OrderRow).where(OrderRow.op_id == failed.request.op_id)
        await session.execute(mine.values(kid=theirs.kid, payload=theirs.payload, signature=theirs.signature))
    with pytest.raises(OrderNotSigned):
        await admission.retry(failed.request.op_id, actor="ada")
    assert await orders_on(database).read_all([failed.request.op_id]) == []


class _Forger:
    """Signs with an untrusted key."""

    def __init__(self) -> None:
        self._key = SigningKey.create()

    def sign(self, order: Order) -> Signed:
        return self._key.seal(ORDER, order.encode().decode())

    def read(self, signed: Signed) -> Order:
        raise AssertionError(signed)


async def test_operation_that_no_api_admitted_cannot_be_retried(
    admission: Admission, operations: OperationTable, join: Join
) -> None:
    """A run started directly in Temporal writes its own row, which proves no request."""
    node = await join()
    request = a_request(node_id=node.id)
    failed = transition(request, State.FAILED, reason=Reason.NOT_ADMITTED, ended_at=now())
    await operations.record(failed)
    with pytest.raises(NotRetryable, match="never admitted"):
        await admission.retry(request.op_id, actor="ada")


async def test_retry_uses_the_signed_order_and_not_the_row(
    admission: Admission, operations: OperationTable, join: Join, database: Database
) -> None:
    node = await join()
    first = queued(node_id=node.id)
    await orders_on(database).admit(first)
    wanted = first.request.wanted.model_copy(update={"uri": "https://evil.example/x"})
    evil = first.request.model_copy(update={"wanted": wanted})
    await operations.record(transition(evil, State.FAILED, seq=3, at=3, ended_at=now()))
    again = await admission.retry(first.request.op_id, actor="ada")
    assert (await ordered(database, again.op_id)).uri == first.request.wanted.uri


async def test_registration_returns_the_newest_ended_orders_of_the_node(database: Database) -> None:
    """For a node whose disk was restored from a backup; orders that never reached it are not included."""
    node_id, table, operations = new_op_id(), OrderTable(database), OperationTable(database)
    sent, unsent = queued(node_id=node_id), queued(node_id=node_id)
    for first in (sent, unsent):
        await orders_on(database).admit(first)
    await PermitTable(database).permit(sent.request.op_id, 1, token="t", on_node=False)
    for first in (sent, unsent):
        await operations.record(transition(first.request, State.FAILED, seq=2, at=2, ended_at=now()))
    assert await table.newest_ended(node_id) == {"echo": (await ordered(database, sent.request.op_id)).iat}
