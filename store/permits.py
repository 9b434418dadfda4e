"""The permit: the row's word before a command goes out. It marks the row as sent, or says why nothing may be sent."""

from sqlalchemy import RowMapping, text

from contracts.dispatch import CancelPending, Granted, Held, NotAdmitted, Permit, RowEnded
from domain.operation import OPEN, State
from store.database import Database
from store.models import one_of
from store.operations import row_end

_IS_OPEN = one_of("operations.state", OPEN)

_PERMIT = text(f"""
    WITH hold AS (SELECT reason, held_by FROM holds WHERE released_at IS NULL),
    marked AS (
        UPDATE operations
        SET sent = greatest(sent, :decision),
            sent_by = CASE WHEN sent < :decision THEN :token ELSE '' END
        WHERE op_id = :op_id AND {_IS_OPEN} AND (:on_node OR NOT EXISTS (SELECT FROM hold))
        AND (:while_cancelling OR state <> '{State.CANCELLING}')
        RETURNING op_id)
    SELECT marked.op_id IS NOT NULL AS granted, operations.op_id, operations.state, operations.reason,
        operations.detail, operations.before, operations.after, operations.cancelled_by,
        hold.reason AS hold_reason, hold.held_by
    FROM (VALUES (1)) AS one
    LEFT JOIN operations ON operations.op_id = :op_id
    LEFT JOIN marked ON true
    LEFT JOIN hold ON true
""")  # noqa: S608 - the words come from the domain

_WITHDRAW = text("""
    UPDATE operations SET sent = :decision - 1
    WHERE op_id = :op_id AND sent = :decision AND sent_by = :token
""")
"""A decision above the first follows a report of the node, so what is left is above 0 for it."""


class PermitTable:
    """Column `sent` of `operations`: the newest decision that may have reached the node; 0 is nothing, ever."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def permit(
        self, op_id: str, decision: int, *, token: str, on_node: bool, while_cancelling: bool = False
    ) -> Permit:
        """One statement. `token` names the mark, so that only its owner takes it back; a shared mark has no owner."""
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
        """The command did not leave: the row is as it was before this mark."""
        async with self._database.autocommit() as connection:
            await connection.execute(_WITHDRAW, {"op_id": op_id, "decision": decision, "token": token})


def _read(row: RowMapping, *, on_node: bool) -> Permit | None:
    """None when the row changed while the statement waited for it: the rest of the answer is older than the mark."""
    if row["granted"]:
        return Granted()
    if row["op_id"] is None:
        return NotAdmitted()
    if row["state"] not in {state.value for state in OPEN}:
        return RowEnded(end=row_end(row))
    if row["state"] == State.CANCELLING:
        return CancelPending(by=row["cancelled_by"])
    if row["held_by"] is not None and not on_node:
        return Held(why=f"{row['hold_reason']}, by {row['held_by']}")
    return None
