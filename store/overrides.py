"""What an admin decided about a node over its own word: it outlives registrations, and can be handed back."""

from typing import Any

from sqlalchemy import update

from domain.errors import UnknownNode
from store.clock import Clock, utc_now
from store.database import Database
from store.labels import write_automatic
from store.models import NodeRow


class Overrides:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def max_replicas(self, node_id: str, value: int | None) -> None:
        """None hands it back: what the node reports counts again, at once."""
        await self._set(node_id, max_replicas_override=value)

    async def vram_budget(self, node_id: str, value: str | None) -> None:
        """ "" is an admin's word too: no budget, whatever the node says. None hands it back."""
        await self._set(node_id, vram_budget_override=value)

    async def _set(self, node_id: str, **override: Any) -> None:
        changed = update(NodeRow).where(NodeRow.id == node_id).values(**override, updated_at=self._clock())
        async with self._database.session() as session:
            node = await session.scalar(changed.returning(NodeRow))
            if node is None:
                raise UnknownNode(node=node_id)
            await write_automatic(session, node)
