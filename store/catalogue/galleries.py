"""Galleries with their last good copies, and uploads: the shared source of the catalogue on every replica."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import to_jsonable_python
from sqlalchemy import Text, delete, func, literal, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from nodesmith.domain.errors import GalleryExists, UploadExists
from nodesmith.domain.gallery import FreshIndex, Gallery, GalleryCopy, GallerySettings, Upload
from nodesmith.domain.gallery_trust import GalleryPolicy
from nodesmith.domain.identity import family_of
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.tables.galleries import GalleryRow, UploadRow

_LARGE = frozenset({"content", "root", "metadata"})
_GALLERY = frozenset(Gallery.__dataclass_fields__)
_UPLOAD = frozenset(Upload.__dataclass_fields__)


class GalleryTable:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def add(self, settings: GallerySettings, fresh: FreshIndex, *, by: str) -> None:
        now = self._clock()
        first = insert(GalleryRow).values(
            name=settings.name,
            url=settings.url,
            mirrors=list(settings.mirrors),
            created_by=by,
            created_at=now,
            **(_trust(settings) | _no_proof() | _refreshed_columns(fresh, now)),
        )
        async with self._database.session() as session:
            if await session.scalar(first.on_conflict_do_nothing().returning(GalleryRow.name)) is None:
                raise GalleryExists(f"There is a gallery {settings.name} already.", field="name")

    async def remove(self, name: str) -> bool:
        async with self._database.session() as session:
            gone = delete(GalleryRow).where(GalleryRow.name == name).returning(GalleryRow.name)
            return await session.scalar(gone) is not None

    async def list(self) -> Sequence[Gallery]:
        """All galleries without their contents, in order of precedence."""
        columns = [column for column in GalleryRow.__table__.columns if column.name not in _LARGE]
        is_signed = (GalleryRow.root != "").label("signed_index")
        async with self._database.session() as session:
            rows = await session.execute(select(*columns, is_signed).order_by(GalleryRow.position))
            return [_gallery(dict(row._mapping)) for row in rows]  # noqa: SLF001 - its public name

    async def copies(self, name: str | None = None) -> Sequence[GalleryCopy]:
        wanted = select(GalleryRow).order_by(GalleryRow.position)
        async with self._database.session() as session:
            rows = await session.scalars(wanted.where(GalleryRow.name == name) if name else wanted)
            return [_copy(row) for row in rows]

    async def claim(self, *, older_than: timedelta) -> Sequence[GalleryCopy]:
        """Claim the galleries that are due for a refresh; each is returned to one replica only."""
        now = self._clock()
        due = select(GalleryRow.name).where(GalleryRow.checked_at < now - older_than)
        mine = update(GalleryRow).where(GalleryRow.name.in_(due.with_for_update(skip_locked=True)))
        async with self._database.session() as session:
            rows = await session.scalars(mine.values(checked_at=now).returning(GalleryRow))
            return [_copy(row) for row in rows]

    async def refreshed(self, name: str, fresh: FreshIndex) -> None:
        """Store a fresh index; an older signed index never overwrites a newer one of another replica."""
        changes = update(GalleryRow).where(GalleryRow.name == name)
        if fresh.proof:
            proven = tuple_(GalleryRow.index_root_version, GalleryRow.index_version)
            changes = changes.where(proven <= tuple_(literal(fresh.proof.root_version), literal(fresh.proof.version)))
        async with self._database.session() as session:
            await session.execute(changes.values(**_refreshed_columns(fresh, self._clock())))

    async def trust(self, settings: GallerySettings, fresh: FreshIndex) -> None:
        """Replace the trust settings together with the index that was read under them."""
        values = _trust(settings) | _no_proof() | _refreshed_columns(fresh, self._clock())
        async with self._database.session() as session:
            await session.execute(update(GalleryRow).where(GalleryRow.name == settings.name).values(**values))

    async def failed(self, name: str, error: str, cooling: Mapping[str, float]) -> None:
        """Record a failed refresh; the stored copy stays."""
        changes = update(GalleryRow).where(GalleryRow.name == name)
        async with self._database.session() as session:
            await session.execute(changes.values(checked_at=self._clock(), error=error, cooling=dict(cooling)))

    async def state(self) -> tuple[object, ...]:
        """A value that changes whenever the catalogue changes."""
        galleries = select(
            GalleryRow.name,
            GalleryRow.digest,
            GalleryRow.source,
            GalleryRow.policy,
            func.md5(GalleryRow.keys.cast(Text) + GalleryRow.root),
            GalleryRow.threshold,
            GalleryRow.index_version,
            GalleryRow.index_expires_at,
        )
        uploads = select(func.count(), func.max(UploadRow.uploaded_at)).select_from(UploadRow)
        async with self._database.session() as session:
            ours = (await session.execute(uploads)).one()
            return (*map(tuple, await session.execute(galleries.order_by(GalleryRow.position))), tuple(ours))


class UploadTable:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def add(self, upload: Upload, *, by: str) -> Upload:
        """Add an upload; a version is never replaced, because nodes may have it installed."""
        now = self._clock()
        kept = replace(upload, uploaded_by=by, uploaded_at=now)
        first = insert(UploadRow).values(
            name=family_of(upload.name),
            version=upload.version,
            entry=to_jsonable_python(kept),
            uploaded_by=by,
            uploaded_at=now,
        )
        async with self._database.session() as session:
            if await session.scalar(first.on_conflict_do_nothing().returning(UploadRow.name)) is None:
                raise UploadExists(f"{upload.name} {upload.version} was uploaded already.", field="version")
        return kept

    async def remove(self, name: str, version: str) -> Upload | None:
        gone = delete(UploadRow).where(UploadRow.name == family_of(name), UploadRow.version == version)
        async with self._database.session() as session:
            entry = await session.scalar(gone.returning(UploadRow.entry))
            return _upload(entry) if entry else None

    async def find(self, name: str, version: str) -> Upload | None:
        wanted = select(UploadRow.entry).where(UploadRow.name == family_of(name), UploadRow.version == version)
        async with self._database.session() as session:
            entry = await session.scalar(wanted)
            return _upload(entry) if entry else None

    async def list(self) -> Sequence[Upload]:
        async with self._database.session() as session:
            entries = await session.scalars(select(UploadRow.entry).order_by(UploadRow.name, UploadRow.version))
            return [_upload(entry) for entry in entries]

    async def uses(self, uri: str) -> bool:
        """Whether an upload still uses this file."""
        async with self._database.session() as session:
            found = select(UploadRow.name).where(UploadRow.entry["uri"].as_string() == uri).limit(1)
            return await session.scalar(found) is not None


def _copy(row: GalleryRow) -> GalleryCopy:
    settings = GallerySettings(
        name=row.name,
        url=row.url,
        mirrors=row.mirrors,
        policy=GalleryPolicy(row.policy),
        keys=row.keys,
        threshold=row.threshold,
        root=row.root,
    )
    return GalleryCopy(
        settings,
        row.content,
        row.source,
        row.etag,
        row.cooling,
        metadata=row.documents,
        index_version=row.index_version,
        index_expires_at=row.index_expires_at,
    )


def _gallery(row: Mapping[str, Any]) -> Gallery:
    fields = {name: value for name, value in row.items() if name in _GALLERY}
    return Gallery(**{**fields, "policy": GalleryPolicy(row["policy"])})


def _upload(entry: Mapping[str, Any]) -> Upload:
    fields = {name: value for name, value in entry.items() if name in _UPLOAD}
    uploaded_at = datetime.fromisoformat(entry["uploaded_at"])
    return Upload(**{**fields, "tags": tuple(entry["tags"]), "uploaded_at": uploaded_at})


def _trust(settings: GallerySettings) -> dict[str, Any]:
    return {
        "policy": settings.policy,
        "keys": list(settings.keys),
        "threshold": settings.threshold,
        "root": settings.root,
    }


def _no_proof() -> dict[str, Any]:
    return {"documents": {}, "index_root_version": 0, "index_version": 0, "index_expires_at": None}


def _refreshed_columns(fresh: FreshIndex, now: datetime) -> dict[str, Any]:
    """The columns that a successful read changes; without content the stored copy stays."""
    changes: dict[str, Any] = {"source": fresh.source, "etag": fresh.etag, "error": "", "cooling": dict(fresh.cooling)}
    if fresh.content is not None:
        changes |= {"content": fresh.content, "digest": _digest(fresh.content)}
    if fresh.proof:
        changes |= {
            "documents": dict(fresh.proof.metadata),
            "index_root_version": fresh.proof.root_version,
            "index_version": fresh.proof.version,
            "index_expires_at": fresh.proof.expires_at,
        }
    return {**changes, "fetched_at": now, "checked_at": now}


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
