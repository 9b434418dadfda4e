"""An admin's overrides of values that a node reports: kept across registrations until they are removed."""

from typing import Any

from sqlalchemy import update

from nodesmith.domain.errors import UnknownNode
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.nodes.labels import write_automatic
from nodesmith.store.tables.core import NodeRow


class Overrides:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def max_replicas(self, node_id: str, value: int | None) -> None:
        """None removes the override: the reported value applies again at once."""
        await self._set(node_id, max_replicas_override=value)

    async def vram_budget(self, node_id: str, value: str | None) -> None:
        """An empty string overrides with "no budget"; None removes the override."""
        await self._set(node_id, vram_budget_override=value)

    async def _set(self, node_id: str, **override: Any) -> None:
        changed = update(NodeRow).where(NodeRow.id == node_id).values(**override, updated_at=self._clock())
        async with self._database.session() as session:
            node = await session.scalar(changed.returning(NodeRow))
            if node is None:
                raise UnknownNode(node=node_id)
            await write_automatic(session, node)
