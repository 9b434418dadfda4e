"""Permits to dispatch a command: marks the row as sent, or returns why nothing may be sent."""

from sqlalchemy import RowMapping, text

from nodesmith.contracts.nats.wire import Signed
from nodesmith.contracts.temporal.dispatch import CancelPending, HeldBack, NotAdmitted, Permit, PermitGranted, RowEnded
from nodesmith.domain.batch import BatchState
from nodesmith.domain.operation import OPEN, Reason, State
from nodesmith.store.database import Database
from nodesmith.store.operations.operations import row_end
from nodesmith.store.tables.core import one_of

_IS_OPEN = one_of("operations.state", OPEN)

_STOPPED = f"""stopped AS (
        SELECT batches.batch_id, batches.state AS batch_state, batches.detail AS batch_detail
        FROM operations JOIN batch_members USING (batch_id, node_id, op_id) JOIN batches USING (batch_id)
        WHERE operations.op_id = :op_id AND sent = 0 AND (
            {one_of("batches.state", (BatchState.CANCELLING, BatchState.CANCELLED))}
            OR batches.begins_nothing AND operations.state = '{State.WAITING}'
                AND {one_of("operations.reason", (Reason.NODE_AWAY, Reason.BATCH_TURN))}))"""  # noqa: S608 - as below
"""the member was never dispatched, and its batch was cancelled, or stopped while the node was away"""

_PERMIT = text(f"""
    WITH hold AS (SELECT reason, held_by FROM holds WHERE released_at IS NULL),
    {_STOPPED},
    marked AS (
        UPDATE operations
        SET sent = greatest(sent, :decision),
            sent_by = CASE WHEN sent < :decision THEN :token ELSE '' END
        WHERE op_id = :op_id AND {_IS_OPEN} AND (:on_node OR NOT EXISTS (SELECT FROM hold))
        AND NOT EXISTS (SELECT FROM stopped)
        AND EXISTS (SELECT FROM orders WHERE orders.op_id = :op_id)
        AND (:while_cancelling OR state <> '{State.CANCELLING}')
        RETURNING op_id)
    SELECT marked.op_id IS NOT NULL AS granted, operations.op_id, operations.state, operations.reason,
        operations.detail, operations.before, operations.after, operations.signed_outcome, operations.cancelled_by,
        hold.reason AS hold_reason, hold.held_by, stopped.batch_id, stopped.batch_state, stopped.batch_detail,
        orders.kid, orders.payload, orders.signature
    FROM (VALUES (1)) AS one
    LEFT JOIN operations ON operations.op_id = :op_id
    LEFT JOIN orders ON orders.op_id = :op_id
    LEFT JOIN marked ON true
    LEFT JOIN hold ON true
    LEFT JOIN stopped ON true
""")  # noqa: S608 - the words come from the domain

_WITHDRAW = text("""
    UPDATE operations SET sent = :decision - 1
    WHERE op_id = :op_id AND sent = :decision AND sent_by = :token
""")
"""A decision above 1 follows a report of the node, so for it `sent` stays above 0."""


class PermitTable:
    """Column `sent` of `operations`: the newest decision that may have reached the node; 0: nothing was ever sent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def permit(
        self, op_id: str, decision: int, *, token: str, on_node: bool, while_cancelling: bool = False
    ) -> Permit:
        """Mark the row in one statement, which also returns the signed order. `token` identifies the mark, so that only
        its owner withdraws it; a shared mark has no owner."""
        values = {
            "op_id": op_id,
            "decision": decision,
            "token": token,
            "on_node": on_node,
            "while_cancelling": while_cancelling,
        }
        while True:
            async with self._database.autocommit() as connection:
                row = (await connection.execute(_PERMIT, values)).mappings().one()
            if (permit := _read(row, on_node=on_node)) is not None:
                return permit

    async def withdraw(self, op_id: str, decision: int, *, token: str) -> None:
        """Remove the mark of a command that was not sent."""
        async with self._database.autocommit() as connection:
            await connection.execute(_WITHDRAW, {"op_id": op_id, "decision": decision, "token": token})


def _read(row: RowMapping, *, on_node: bool) -> Permit | None:
    """None when the row changed while the statement waited for its lock: the other columns are then stale."""
    if row["granted"]:
        return PermitGranted(order=Signed(kid=row["kid"], payload=row["payload"], signature=row["signature"]))
    return _why_not(row, on_node=on_node)


def _why_not(row: RowMapping, *, on_node: bool) -> Permit | None:
    if row["op_id"] is None:
        return NotAdmitted(has_order=row["kid"] is not None)
    if row["state"] not in {state.value for state in OPEN}:
        return RowEnded(end=row_end(row))
    if row["state"] == State.CANCELLING or row["batch_id"] is not None:
        return _cancel(row)
    if row["kid"] is None:
        return NotAdmitted(has_order=False)
    if row["held_by"] is not None and not on_node:
        return HeldBack(why=f"{row['hold_reason']}, by {row['held_by']}")
    return None


def _cancel(row: RowMapping) -> CancelPending:
    """The pending cancel of the operation or of its batch, which cancels its members only while its run exists."""
    if row["batch_id"] is None:
        return CancelPending(by=row["cancelled_by"])
    why = Reason.BATCH_STOPPED if row["batch_state"] == BatchState.STOPPED else Reason.BATCH_CANCELLED
    name = f"batch {row['batch_id']}"
    return CancelPending(by=name, why=why, detail=f"{name} {row['batch_detail'].removeprefix('batch ')}")
