"""Signed orders, one per operation: written at admission, and renewed while the operation is open."""

from collections.abc import Iterable, Mapping, Sequence

from pydantic_core import to_json
from sqlalchemy import func, select, text, update

from nodesmith.contracts.nats.orders import Order
from nodesmith.contracts.nats.wire import Signed
from nodesmith.domain.operation import ENDED, OPEN
from nodesmith.store.database import Database
from nodesmith.store.tables.core import OperationRow, OrderRow, one_of

INSERT_CHUNK = 1000

INSERT_ORDERS = f"""
    INSERT INTO orders (op_id, node_id, family, iat, exp, kid, payload, signature)
    SELECT op_id, node_id, family, iat, exp, kid, payload, signature
    FROM jsonb_populate_recordset(NULL::orders, CAST(:orders AS jsonb)) AS fresh
    WHERE NOT EXISTS (
        SELECT FROM orders AS newer
        WHERE newer.node_id = fresh.node_id AND newer.family = fresh.family AND newer.iat >= fresh.iat)
    AND NOT EXISTS (
        SELECT FROM operations AS ended WHERE ended.op_id = fresh.op_id AND {one_of("ended.state", ENDED)})
    ON CONFLICT DO NOTHING
    RETURNING op_id"""  # noqa: S608 - the words come from the domain
"""Inserts only an order that is newer than all others for its node and family, because nodes refuse older ones.
Replicas whose clocks differ, or that write in the same millisecond, learn here that their order is not the newest.
An operation that has ended gets no order: its run ended because no order came in time."""

_INSERT = text(INSERT_ORDERS)


def order_rows(orders: Iterable[tuple[Order, Signed]]) -> str:
    """Orders as the JSON parameter of `INSERT_ORDERS`."""
    return to_json([_row(order, signed) for order, signed in orders]).decode()


def _row(order: Order, signed: Signed) -> dict[str, object]:
    return {
        "op_id": order.op_id,
        "node_id": order.node,
        "family": order.lock,
        "iat": order.iat,
        "exp": order.exp,
        **signed.model_dump(),
    }


class OrderTable:
    """The table `orders`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, orders: Sequence[tuple[Order, Signed]]) -> set[str]:
        """Insert orders; returns the inserted ids. The others exist already, or are not the newest of their family."""
        taken: set[str] = set()
        for begin in range(0, len(orders), INSERT_CHUNK):
            some = order_rows(orders[begin : begin + INSERT_CHUNK])
            async with self._database.autocommit() as connection:
                taken |= set((await connection.execute(_INSERT, {"orders": some})).scalars())
        return taken

    async def find(self, op_id: str) -> Signed | None:
        found = await self.find_all([op_id])
        return found[0] if found else None

    async def find_all(self, op_ids: Sequence[str]) -> list[Signed]:
        row = OrderRow
        wanted = select(row.kid, row.payload, row.signature).where(row.op_id.in_(op_ids))
        async with self._database.reading() as session:
            return [Signed.model_validate(dict(each)) for each in (await session.execute(wanted)).mappings()]

    async def known_among(self, op_ids: Sequence[str]) -> set[str]:
        async with self._database.reading() as session:
            return set(await session.scalars(select(OrderRow.op_id).where(OrderRow.op_id.in_(op_ids))))

    async def newest(self, family: str, node_ids: Sequence[str]) -> dict[str, int]:
        """Node -> issue time of its newest order for that family."""
        row = OrderRow
        wanted = select(row.node_id, func.max(row.iat)).where(row.family == family, row.node_id.in_(node_ids))
        async with self._database.reading() as session:
            return dict(list(await session.execute(wanted.group_by(row.node_id))))

    async def newest_ended(self, node_id: str) -> dict[str, int]:
        """Family -> issue time of the newest order that was sent to this node and has ended."""
        row, operation = OrderRow, OperationRow
        wanted = select(row.family, func.max(row.iat)).join(operation, operation.op_id == row.op_id)
        wanted = wanted.where(row.node_id == node_id, operation.ended_at.is_not(None), operation.sent > 0)
        async with self._database.reading() as session:
            return dict(list(await session.execute(wanted.group_by(row.family))))

    async def ending(self, before: int, *, limit: int) -> list[tuple[Signed, str, str]]:
        """Orders of open operations that expire before that time, with workflow id and wait reason."""
        row, operation = OrderRow, OperationRow
        wanted = select(row.kid, row.payload, row.signature, operation.workflow_id, operation.reason)
        wanted = wanted.join(operation, operation.op_id == row.op_id)
        wanted = wanted.where(text(one_of("operations.state", OPEN)), row.exp < before).order_by(row.exp).limit(limit)
        async with self._database.reading() as session:
            found = (await session.execute(wanted)).all()
        return [
            (Signed(kid=kid, payload=payload, signature=signature), workflow_id, reason or "")
            for kid, payload, signature, workflow_id, reason in found
        ]

    async def renew(self, old: Signed, order: Order, signed: Signed) -> bool:
        """Replace exactly that order; False when another replica was faster."""
        row = OrderRow
        mine = update(row).where(row.op_id == order.op_id, row.signature == old.signature)
        values: Mapping[str, object] = {"exp": order.exp, **signed.model_dump()}
        async with self._database.session() as session:
            return bool((await session.scalars(mine.values(values).returning(row.op_id))).all())
