"""Galleries: adds, removes and refreshes them, and merges them into one catalogue on every replica."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from nodesmith.domain.artifact import Artifact
from nodesmith.domain.errors import (
    GalleryUnreadable,
    InvalidRequest,
    NodesmithError,
    ServiceUnavailable,
    UnknownGallery,
)
from nodesmith.domain.gallery import BUILTIN, FreshIndex, Gallery, GalleryCopy, GallerySettings, TrustSettings, Upload
from nodesmith.domain.gallery_trust import GalleryPolicy
from nodesmith.gallery.addresses import SourceFailed, address, complaint
from nodesmith.gallery.artifact_keys import BadKey, read_key
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.entries import Entry, Index, Unusable
from nodesmith.gallery.index import merged, read_index
from nodesmith.gallery.signed_index import IndexRefused, check_root
from nodesmith.gallery.yaml_documents import NotAnIndex

log = structlog.stdlib.get_logger(__name__)

SYNC_INTERVAL_S = 1.0
"""interval at which this replica looks for changes of others"""


class GalleryStore(Protocol):
    async def add(self, settings: GallerySettings, fresh: FreshIndex, *, by: str) -> None: ...
    async def remove(self, name: str) -> bool: ...
    async def list(self) -> Sequence[Gallery]: ...
    async def copies(self, name: str | None = None) -> Sequence[GalleryCopy]: ...
    async def claim(self, *, older_than: timedelta) -> Sequence[GalleryCopy]: ...
    async def refreshed(self, name: str, fresh: FreshIndex) -> None: ...
    async def trust(self, settings: GallerySettings, fresh: FreshIndex) -> None: ...
    async def failed(self, name: str, error: str, cooling: Mapping[str, float]) -> None: ...
    async def state(self) -> tuple[object, ...]: ...


class Uploads(Protocol):
    async def list(self) -> Sequence[Upload]: ...


class Reader(Protocol):
    """Reads a gallery from its addresses; raises `SourceFailed` when all of them fail."""

    async def read(self, settings: GallerySettings, copy: GalleryCopy | None, *, patient: bool) -> FreshIndex: ...


@dataclass
class Galleries:
    """Keeps the catalogue of this process equal to the galleries in the database."""

    table: GalleryStore
    uploads: Uploads
    reader: Reader
    catalogue: Catalogue
    builtin: Sequence[Entry]
    refresh_every: timedelta
    clock: Callable[[], datetime]
    sync_interval_s: float = SYNC_INTERVAL_S
    _seen: tuple[object, ...] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def add(self, settings: GallerySettings, *, by: str) -> Gallery:
        """Add a gallery after reading it once; an unreadable one is not added."""
        if settings.name.casefold() == BUILTIN:
            raise InvalidRequest(f"{BUILTIN} is the gallery that the API serves itself.", field="name")
        for url in (settings.url, *settings.mirrors):
            if wrong := complaint(url):
                raise InvalidRequest(wrong, field="url")
        check_trust(settings)
        fresh = await self._read_new(settings, "was not added")
        await self.table.add(settings, fresh, by=by)
        return await self.find(settings.name)

    async def trust(self, name: str, wanted: TrustSettings) -> Gallery:
        """Set the trust policy of a gallery after reading it once; the old one stays if the gallery fails it."""
        check_trust(wanted)
        copy = next(iter(await self.table.copies(name)), None)
        if copy is None:
            raise UnknownGallery(f"There is no gallery {name}.", gallery=name)
        settings = replace(copy.settings, **vars(wanted))
        await self.table.trust(settings, await self._read_new(settings, "keeps its previous trust settings"))
        return await self.find(name)

    async def _read_new(self, settings: GallerySettings, consequence: str) -> FreshIndex:
        """Read the gallery under the new settings, without the earlier copy."""
        try:
            return await self.reader.read(settings, None, patient=False)
        except SourceFailed as failed:
            raise GalleryUnreadable(f"{settings.name} {consequence}: {failed}", field="url") from failed

    async def remove(self, name: str) -> None:
        if not await self.table.remove(name):
            raise UnknownGallery(f"There is no gallery {name}.", gallery=name)
        await self.sync()

    async def refresh(self, name: str | None = None) -> Sequence[Gallery]:
        """Read one gallery or all again now, regardless of schedule and back-off."""
        copies = await self.table.copies(name)
        if name and not copies:
            raise UnknownGallery(f"There is no gallery {name}.", gallery=name)
        await asyncio.gather(*(self._refresh(copy, patient=False) for copy in copies))
        return [gallery for gallery in await self.list() if name in (None, gallery.name)]

    async def list(self) -> Sequence[Gallery]:
        """All galleries with their state and their numbers of usable and unusable entries."""
        await self.sync()
        count = _counted([entry.gallery for entry in self.catalogue.listed()])
        bad = _counted([entry.gallery for entry in self.catalogue.unusable()])
        ours = Gallery(name=BUILTIN, url="/artifacts", entries=count.get(BUILTIN, 0))
        return [ours] + [
            replace(
                gallery,
                entries=count.get(gallery.name, 0),
                unusable=bad.get(gallery.name, 0),
                key_ids=[read_key(text).id for text in self.catalogue.trust(gallery.name).keys],
            )
            for gallery in await self.table.list()
        ]

    async def check_signed(self) -> None:
        """Raise when a signed index was refused at its last reading, or has expired."""
        broken = [
            gallery.name for gallery in await self.table.list() if gallery.signed_index and self._is_broken(gallery)
        ]
        if broken:
            raise ServiceUnavailable(f"The signed index was refused or has expired: {', '.join(broken)}.")

    def _is_broken(self, gallery: Gallery) -> bool:
        return bool(gallery.error) or (
            gallery.index_expires_at is not None and gallery.index_expires_at <= self.clock()
        )

    async def find(self, name: str) -> Gallery:
        found = next((gallery for gallery in await self.list() if gallery.name == name), None)
        if found is None:
            raise UnknownGallery(f"There is no gallery {name}.", gallery=name)
        return found

    async def sync(self) -> None:
        """Rebuild the catalogue from the database if the galleries have changed."""
        async with self._lock:
            state = await self.table.state()
            if state == self._seen:
                return
            copies, uploads = await self.table.copies(), await self.uploads.list()
            index = await asyncio.to_thread(self._merge, copies, uploads)
            trust = {copy.settings.name: copy.trust() for copy in copies}
            self.catalogue.replace(index.entries, index.unusable, trust)
            self._seen = state

    async def run(self) -> None:
        """Background loop: follow changes of other replicas, and refresh galleries that are due."""
        while True:
            try:
                await self.sync()
                due = await self.table.claim(older_than=self.refresh_every)
                await asyncio.gather(*(self._refresh(copy, patient=True) for copy in due))
            except NodesmithError as error:
                log.info("galleries.not_synced", error=error.message)
            await asyncio.sleep(self.sync_interval_s)

    async def _refresh(self, copy: GalleryCopy, *, patient: bool) -> None:
        """Refresh a gallery; its last good copy stays in use when every source fails."""
        name = copy.settings.name
        try:
            await self.table.refreshed(name, await self.reader.read(copy.settings, copy, patient=patient))
        except SourceFailed as failed:
            log.warning("gallery.not_read", gallery=name, error=str(failed))
            await self.table.failed(name, str(failed), failed.cooling)

    def _merge(self, copies: Sequence[GalleryCopy], uploads: Sequence[Upload]) -> Index:
        return merged([*map(_index_of, copies), Index([*map(uploaded, uploads), *self.builtin])])


def check_trust(wanted: TrustSettings) -> None:
    """Refuse settings that no gallery could meet, and a `signed` policy without keys or root."""
    try:
        keys = {read_key(text).content for text in wanted.keys}
        if wanted.root:
            check_root(wanted.root)
    except BadKey as error:
        raise InvalidRequest(f"keys: {error}", field="keys") from error
    except IndexRefused as error:
        raise InvalidRequest(f"root: {error}", field="root") from error
    if wanted.policy is GalleryPolicy.SIGNED and not keys and not wanted.root:
        raise InvalidRequest("`signed` needs keys for artifacts, or the root of a signed index.", field="keys")
    if wanted.policy is not GalleryPolicy.SIGNED and (keys or wanted.root):
        raise InvalidRequest("Keys and root are used only with the policy `signed`.", field="policy")
    if wanted.threshold > max(1, len(keys)):
        raise InvalidRequest(
            f"threshold: {wanted.threshold} is more than the number of different keys.", field="threshold"
        )


def _index_of(copy: GalleryCopy) -> Index:
    settings = copy.settings
    try:
        return read_index(copy.content, settings.name, address(copy.source), settings.trusted())
    except NotAnIndex as refused:
        return Index([], [Unusable(settings.name, "(all)", str(refused))])


def uploaded(upload: Upload) -> Entry:
    artifact = Artifact(
        name=upload.name,
        version=upload.version,
        uri=upload.uri,
        sha256=upload.sha256,
        size=upload.size,
        description=upload.description,
        gallery=BUILTIN,
    )
    return Entry(BUILTIN, artifact, tags=frozenset(upload.tags))


def _counted(names: Sequence[str]) -> dict[str, int]:
    return dict(Counter(names))
