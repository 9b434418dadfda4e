"""Installed backends across all nodes, for the catalogue and for upgrades."""

from collections.abc import Collection, Sequence

from sqlalchemy import select

from nodesmith.domain.installed import Installation, InstalledBackend
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import status_expression
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow
from nodesmith.store.tables.inventory import InstalledRow

_FIELDS = ("name", "version", "digest", "uri", "is_system", "is_meta", "installed_at", "family")


class Installations:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def families(self) -> set[str]:
        async with self._database.session() as session:
            return set(await session.scalars(select(InstalledRow.family).distinct()))

    async def list(self, families: Collection[str] | None = None) -> Sequence[Installation]:
        """All installations, or those of some families, sorted by node name."""
        wanted = (
            select(NodeRow.name, status_expression(self._clock()), InstalledRow)
            .select_from(InstalledRow)
            .join(NodeRow, NodeRow.id == InstalledRow.node_id)
            .outerjoin(HeartbeatSinkRow, HeartbeatSinkRow.protocol == NodeRow.protocol)
            .order_by(NodeRow.name, InstalledRow.family)
        )
        if families is not None:
            wanted = wanted.where(InstalledRow.family.in_(families))
        async with self._database.session() as session:
            return [
                Installation(row.node_id, name, status, _installed(row))
                for name, status, row in await session.execute(wanted)
            ]


def _installed(row: InstalledRow) -> InstalledBackend:
    return InstalledBackend(**{field: getattr(row, field) for field in _FIELDS})
