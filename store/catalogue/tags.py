"""The last known digests of tags, shared by all replicas."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.tables.galleries import TagDigestRow


class TagDigests:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def known(self) -> Mapping[str, tuple[str, datetime]]:
        """Reference -> digest, and when the registry reported it."""
        async with self._database.session() as session:
            rows = await session.scalars(select(TagDigestRow))
            return {row.reference: (row.digest, row.checked_at) for row in rows}

    async def note(self, reference: str, digest: str) -> None:
        values = {"digest": digest, "checked_at": self._clock()}
        first = insert(TagDigestRow).values(reference=reference, **values)
        async with self._database.session() as session:
            await session.execute(first.on_conflict_do_update(index_elements=[TagDigestRow.reference], set_=values))
