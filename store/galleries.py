"""Galleries with their last good copies, and what was uploaded: what makes the catalogue the same on every replica."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from contracts.galleries import FreshIndex, GalleryCopy, GalleryRequest, GalleryView, UploadView
from domain.errors import GalleryExists, UploadExists
from domain.identity import family_of
from store.clock import Clock, utc_now
from store.database import Database
from store.models_galleries import GalleryRow, UploadRow


class GalleryTable:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def add(self, request: GalleryRequest, fresh: FreshIndex, *, by: str) -> None:
        now, content = self._clock(), fresh.content or ""
        first = insert(GalleryRow).values(
            name=request.name,
            url=request.url,
            mirrors=request.mirrors,
            insecure=request.insecure,
            created_by=by,
            created_at=now,
            content=content,
            digest=_digest(content),
            etag=fresh.etag,
            source=fresh.source,
            fetched_at=now,
            checked_at=now,
            error="",
            cooling=dict(fresh.cooling),
        )
        async with self._database.session() as session:
            if await session.scalar(first.on_conflict_do_nothing().returning(GalleryRow.name)) is None:
                raise GalleryExists(f"There is a gallery {request.name} already.", field="name")

    async def remove(self, name: str) -> bool:
        async with self._database.session() as session:
            gone = delete(GalleryRow).where(GalleryRow.name == name).returning(GalleryRow.name)
            return await session.scalar(gone) is not None

    async def list(self) -> Sequence[GalleryView]:
        """Without their contents, in the order in which they win."""
        columns = [column for column in GalleryRow.__table__.columns if column.name != "content"]
        async with self._database.session() as session:
            rows = await session.execute(select(*columns).order_by(GalleryRow.position))
            return [GalleryView.model_validate(dict(row._mapping)) for row in rows]  # noqa: SLF001 - its public name

    async def copies(self, name: str | None = None) -> Sequence[GalleryCopy]:
        wanted = select(GalleryRow).order_by(GalleryRow.position)
        async with self._database.session() as session:
            rows = await session.scalars(wanted.where(GalleryRow.name == name) if name else wanted)
            return [_copy(row) for row in rows]

    async def claim(self, *, older_than: timedelta) -> Sequence[GalleryCopy]:
        """Those whose turn it is to be read again: each is given to one replica only."""
        now = self._clock()
        due = select(GalleryRow.name).where(GalleryRow.checked_at < now - older_than)
        mine = update(GalleryRow).where(GalleryRow.name.in_(due.with_for_update(skip_locked=True)))
        async with self._database.session() as session:
            rows = await session.scalars(mine.values(checked_at=now).returning(GalleryRow))
            return [_copy(row) for row in rows]

    async def refreshed(self, name: str, fresh: FreshIndex) -> None:
        now = self._clock()
        news = {"source": fresh.source, "etag": fresh.etag, "error": "", "cooling": dict(fresh.cooling)}
        if fresh.content is not None:
            news |= {"content": fresh.content, "digest": _digest(fresh.content)}
        async with self._database.session() as session:
            await session.execute(
                update(GalleryRow).where(GalleryRow.name == name).values(checked_at=now, fetched_at=now, **news)
            )

    async def failed(self, name: str, error: str, cooling: Mapping[str, float]) -> None:
        """The copy stays as it is."""
        news = update(GalleryRow).where(GalleryRow.name == name)
        async with self._database.session() as session:
            await session.execute(news.values(checked_at=self._clock(), error=error, cooling=dict(cooling)))

    async def state(self) -> tuple[object, ...]:
        """Differs as soon as the catalogue does."""
        galleries = select(GalleryRow.name, GalleryRow.digest, GalleryRow.insecure, GalleryRow.source)
        uploads = select(func.count(), func.max(UploadRow.uploaded_at)).select_from(UploadRow)
        async with self._database.session() as session:
            ours = (await session.execute(uploads)).one()
            return (*map(tuple, await session.execute(galleries.order_by(GalleryRow.position))), tuple(ours))


class UploadTable:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def add(self, upload: UploadView, *, by: str) -> UploadView:
        """A version is never replaced: nodes that have it would not be what they say."""
        now = self._clock()
        kept = upload.model_copy(update={"uploaded_by": by, "uploaded_at": now})
        first = insert(UploadRow).values(
            name=family_of(upload.name),
            version=upload.version,
            entry=kept.model_dump(mode="json"),
            uploaded_by=by,
            uploaded_at=now,
        )
        async with self._database.session() as session:
            if await session.scalar(first.on_conflict_do_nothing().returning(UploadRow.name)) is None:
                raise UploadExists(f"{upload.name} {upload.version} is there already.", field="version")
        return kept

    async def remove(self, name: str, version: str) -> UploadView | None:
        gone = delete(UploadRow).where(UploadRow.name == family_of(name), UploadRow.version == version)
        async with self._database.session() as session:
            entry = await session.scalar(gone.returning(UploadRow.entry))
            return UploadView.model_validate(entry) if entry else None

    async def list(self) -> Sequence[UploadView]:
        async with self._database.session() as session:
            entries = await session.scalars(select(UploadRow.entry).order_by(UploadRow.name, UploadRow.version))
            return [UploadView.model_validate(entry) for entry in entries]

    async def uses(self, uri: str) -> bool:
        """Whether an upload still names this file."""
        async with self._database.session() as session:
            found = select(UploadRow.name).where(UploadRow.entry["uri"].as_string() == uri).limit(1)
            return await session.scalar(found) is not None


def _copy(row: GalleryRow) -> GalleryCopy:
    request = GalleryRequest(name=row.name, url=row.url, mirrors=row.mirrors, insecure=row.insecure)
    return GalleryCopy(request, row.content, row.source, row.etag, row.cooling)


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
