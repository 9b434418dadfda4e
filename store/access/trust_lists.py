"""Trust lists of the installation, and the nodes that do not have the newest one yet."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert

from nodesmith.contracts.nats.orders import TrustChain
from nodesmith.domain.node import Protocol
from nodesmith.domain.trust_lists import OutdatedNodes
from nodesmith.store.database import Database
from nodesmith.store.tables.access import TrustRecordRow
from nodesmith.store.tables.core import NodeRow

_SINGLE_ROW = 1


class TrustVersions:
    """Column `trust_version` of `nodes`: the version that each node reported in its last heartbeat."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def behind(self, version: int, *, named: int) -> OutdatedNodes:
        """How many nodes have an older list, and the names of the first few; one statement."""
        wanted = select(NodeRow.name, func.count().over()).where(_is_behind(version)).order_by(NodeRow.name)
        async with self._database.reading() as session:
            found = (await session.execute(wanted.limit(named))).all()
        return OutdatedNodes(found[0][1] if found else 0, [name for name, _ in found])

    async def reachable(self, version: int, *, heard_since: datetime, limit: int) -> Sequence[str]:
        """Ids of nodes with an older list and a heartbeat since that time."""
        is_heard = NodeRow.last_heartbeat >= heard_since
        wanted = select(NodeRow.id).where(_is_behind(version), is_heard).order_by(NodeRow.trust_version, NodeRow.id)
        async with self._database.reading() as session:
            return list(await session.scalars(wanted.limit(limit)))


class TrustRecord:
    """Table `trust_record`: the trust lists that all API replicas of this installation share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> TrustChain | None:
        async with self._database.reading() as session:
            chain = await session.scalar(select(TrustRecordRow.chain))
        return TrustChain.model_validate_json(chain) if chain is not None else None

    async def replace(self, old: TrustChain | None, new: TrustChain) -> bool:
        """Replace exactly `old` by `new`; False when another replica was faster."""
        row, values = TrustRecordRow, {"chain": new.model_dump_json(), "recorded_at": func.now()}
        first = insert(row).values(id=_SINGLE_ROW, **values).on_conflict_do_nothing().returning(row.id)
        async with self._database.session() as session:
            if old is None:
                return await session.scalar(first) is not None
            again = update(row).where(row.chain == old.model_dump_json()).values(values).returning(row.id)
            return await session.scalar(again) is not None


def _is_behind(version: int) -> ColumnElement[bool]:
    """Whether an approved agent has an older list; one that left gets the list when it registers again."""
    takes_part = and_(NodeRow.approved_at.is_not(None), NodeRow.left_at.is_(None))
    return and_(NodeRow.protocol == int(Protocol.NODESMITH), takes_part, NodeRow.trust_version < version)
