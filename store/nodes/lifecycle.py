"""Lifecycle of a node in the database: drain, resume, leave, remove; and its retired credentials."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, exists, func, literal_column, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from nodesmith.contracts.nats.presence import StopWhy
from nodesmith.domain.eligibility import Obstacle
from nodesmith.domain.operation import OPEN, Operation
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.entities import operation_of
from nodesmith.store.nodes.eligibility import hindered_by
from nodesmith.store.nodes.nats_credentials import revoke_all
from nodesmith.store.tables.core import NodeRow, OperationRow, RetiredCredentialRow, one_of

_IS_OPEN = literal_column(one_of("operations.state", OPEN)).is_(True)


class NodeLifecycle:
    """Each change is one transaction."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    # what an admin decides ------------------------------------------------------------------------------------

    async def drain(self, node_id: str, *, now: datetime) -> None:
        """Drain the node until an admin resumes it; a repeated drain keeps the first time."""
        drained = update(NodeRow).where(NodeRow.id == node_id)
        async with self._database.session() as session:
            await session.execute(drained.values(drained_at=func.coalesce(NodeRow.drained_at, now), updated_at=now))

    async def resume(self, node_id: str, *, now: datetime) -> None:
        """End a drain and the node's own announcement to leave; does not approve the node."""
        resumed = update(NodeRow).where(NodeRow.id == node_id)
        async with self._database.session() as session:
            await session.execute(resumed.values(drained_at=None, leaving_at=None, updated_at=now))

    async def remove(self, node_id: str, *, now: datetime) -> None:
        """Delete the node and its dependent rows; operations, events and the audit trail stay."""
        async with self._database.session() as session:
            await _retire(session, node_id, StopWhy.REMOVED, now)
            await session.execute(delete(NodeRow).where(NodeRow.id == node_id))

    async def reset_credential(self, node_id: str, *, now: datetime) -> None:
        """Release the name for the next machine that registers, which needs approval like any other."""
        freed = update(NodeRow).where(NodeRow.id == node_id)
        unassigned: dict[str, object] = {
            "credential_hash": None,
            "machine_id": "",
            "boot_id": "",
            "approved_at": None,
            "rival_seen_at": None,
        }
        unassigned |= {"nats_key": "", "beat_seq": 0, "beat_at": None}
        async with self._database.session() as session:
            await _retire(session, node_id, StopWhy.CREDENTIAL_RESET, now)
            await session.execute(freed.values(**unassigned, updated_at=now))

    # what a node says of itself -------------------------------------------------------------------------------

    async def leaving(self, node_id: str, *, now: datetime) -> None:
        await self._update(node_id, leaving_at=now)

    async def left(self, node_id: str, *, now: datetime, boot_id: str = "") -> None:
        """Record that the node left; a late message of an earlier boot changes nothing."""
        await self._update(node_id, boot_id=boot_id, left_at=now)

    async def stayed(self, node_id: str) -> None:
        """Withdraw the node's announcement to leave; the admin's decisions stay."""
        await self._update(node_id, leaving_at=None, left_at=None)

    # identity -------------------------------------------------------------------------------------------------

    async def adopt(self, node_id: str, *, boot_id: str, instead_of: str) -> None:
        """Make this boot the node, in place of the registered process that is gone."""
        known = update(NodeRow).where(NodeRow.id == node_id, NodeRow.boot_id == instead_of)
        async with self._database.session() as session:
            await session.execute(known.values(boot_id=boot_id, beat_seq=0))

    async def record_rival(self, node_id: str, *, now: datetime) -> None:
        await self._update(node_id, rival_seen_at=now)

    async def why_retired(self, credential_hash: str) -> StopWhy | None:
        retired = select(RetiredCredentialRow.why).where(RetiredCredentialRow.credential_hash == credential_hash)
        async with self._database.session() as session:
            why = await session.scalar(retired)
        return StopWhy(why) if why else None

    async def removed_among(self, node_ids: Sequence[str]) -> Sequence[str]:
        """Of these unknown nodes, the ones that an admin removed."""
        row = RetiredCredentialRow
        async with self._database.session() as session:
            found = await session.scalars(select(row.node_id).where(row.node_id.in_(node_ids)).distinct())
            return list(found)

    # operations that a change of a node concerns --------------------------------------------------------------

    async def open_on(self, node_id: str) -> Sequence[Operation]:
        wanted = select(OperationRow).where(OperationRow.node_id == node_id, _IS_OPEN)
        now = self._clock()
        async with self._database.session() as session:
            return [operation_of(row, now) for row in await session.scalars(wanted)]

    async def stranded(self) -> Sequence[tuple[Operation, bool]]:
        """Open operations of removed nodes (True), and undispatched ones admitted before a drain (False)."""
        node_exists = exists().where(NodeRow.id == OperationRow.node_id)
        drained_since = exists().where(
            NodeRow.id == OperationRow.node_id,
            hindered_by(Obstacle.DRAINED),
            NodeRow.drained_at > OperationRow.created_at,
        )
        overtaken = drained_since & OperationRow.dispatched_at.is_(None)
        wanted = select(OperationRow, ~node_exists).where(_IS_OPEN, or_(~node_exists, overtaken))
        now = self._clock()
        async with self._database.session() as session:
            return [(operation_of(row, now), is_removed) for row, is_removed in await session.execute(wanted)]

    async def _update(self, node_id: str, *, boot_id: str = "", **facts: datetime | None) -> None:
        known = update(NodeRow).where(NodeRow.id == node_id)
        if boot_id:
            known = known.where(NodeRow.boot_id.in_(["", boot_id]))
        async with self._database.session() as session:
            await session.execute(known.values(**facts))


async def _retire(session: AsyncSession, node_id: str, why: StopWhy, now: datetime) -> None:
    """Retire the credential, so that a process that still presents it gets the reason and is not admitted again."""
    node = await session.get(NodeRow, node_id, with_for_update=True)
    if node is None:
        return
    await revoke_all(session, node_id, now)
    retired = insert(RetiredCredentialRow).values(
        credential_hash=node.credential_hash or f"none:{node_id}",
        node_id=node_id,
        node_name=node.name,
        why=why.value,
        retired_at=now,
    )
    await session.execute(retired.on_conflict_do_nothing())
