"""What is installed where, seen from the backends: for the catalogue and for upgrades."""

from collections.abc import Collection, Sequence

from sqlalchemy import select

from contracts.galleries import Installation
from contracts.messages import Installed
from store.clock import Clock, utc_now
from store.database import Database
from store.models import HeartbeatSinkRow, NodeRow
from store.models_inventory import InstalledRow
from store.nodes import status_expression

_FIELDS = ("name", "version", "digest", "uri", "is_system", "is_meta", "installed_at", "family")


class Installations:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def families(self) -> set[str]:
        async with self._database.session() as session:
            return set(await session.scalars(select(InstalledRow.family).distinct()))

    async def list(self, families: Collection[str] | None = None) -> Sequence[Installation]:
        """All of them, or those of some families; by the names of the nodes."""
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
                Installation(row.node_id, name, status, Installed(**{field: getattr(row, field) for field in _FIELDS}))
                for name, status, row in await session.execute(wanted)
            ]
