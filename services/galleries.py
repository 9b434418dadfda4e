"""The galleries: added, removed, read again when it is time, and put together to one catalogue on every replica."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import structlog

from contracts.galleries import BUILTIN, FreshIndex, GalleryCopy, GalleryRequest, GalleryView, UploadView
from domain.artifact import Artifact
from domain.errors import GalleryUnreadable, InvalidRequest, NodesmithError, UnknownGallery
from gallery.addresses import SourceFailed, address, complaint
from gallery.catalogue import Catalogue
from gallery.documents import NotAnIndex
from gallery.entries import Entry, Index, Unusable
from gallery.index import merged, read_index

log = structlog.stdlib.get_logger(__name__)

LOOK_EVERY_S = 1.0
"""how long a change that another replica made may stay unseen here"""


class Table(Protocol):
    async def add(self, request: GalleryRequest, fresh: FreshIndex, *, by: str) -> None: ...
    async def remove(self, name: str) -> bool: ...
    async def list(self) -> Sequence[GalleryView]: ...
    async def copies(self, name: str | None = None) -> Sequence[GalleryCopy]: ...
    async def claim(self, *, older_than: timedelta) -> Sequence[GalleryCopy]: ...
    async def refreshed(self, name: str, fresh: FreshIndex) -> None: ...
    async def failed(self, name: str, error: str, cooling: Mapping[str, float]) -> None: ...
    async def state(self) -> tuple[object, ...]: ...


class Uploads(Protocol):
    async def list(self) -> Sequence[UploadView]: ...


class Reader(Protocol):
    """Asks the addresses of a gallery; raises `SourceFailed` when all of them fail."""

    async def read(self, request: GalleryRequest, copy: GalleryCopy | None, *, patient: bool) -> FreshIndex: ...


@dataclass
class Galleries:
    """The catalogue in this process, and the hands that keep it equal to what the database holds."""

    table: Table
    uploads: Uploads
    reader: Reader
    catalogue: Catalogue
    builtin: Sequence[Entry]
    refresh_every: timedelta
    look_every_s: float = LOOK_EVERY_S
    _seen: tuple[object, ...] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def add(self, request: GalleryRequest, *, by: str) -> GalleryView:
        """Read it first: a gallery that says nothing now is not added."""
        if request.name.casefold() == BUILTIN:
            raise InvalidRequest(f"{BUILTIN} is the gallery that the API serves itself.", field="name")
        for url in (request.url, *request.mirrors):
            if wrong := complaint(url):
                raise InvalidRequest(wrong, field="url")
        try:
            fresh = await self.reader.read(request, None, patient=False)
        except SourceFailed as failed:
            raise GalleryUnreadable(f"{request.name} was not added: {failed}", field="url") from failed
        await self.table.add(request, fresh, by=by)
        return await self.find(request.name)

    async def remove(self, name: str) -> None:
        if not await self.table.remove(name):
            raise UnknownGallery(f"There is no gallery {name}.", gallery=name)
        await self.sync()

    async def refresh(self, name: str | None = None) -> Sequence[GalleryView]:
        """Read one again, or all, whatever their turn and however often they failed."""
        copies = await self.table.copies(name)
        if name and not copies:
            raise UnknownGallery(f"There is no gallery {name}.", gallery=name)
        await asyncio.gather(*(self._read_again(copy, patient=False) for copy in copies))
        return [view for view in await self.list() if name in (None, view.name)]

    async def list(self) -> Sequence[GalleryView]:
        """How each does, and how much of it can be used."""
        await self.sync()
        count = _counted([entry.gallery for entry in self.catalogue.listed()])
        bad = _counted([entry.gallery for entry in self.catalogue.unusable()])
        ours = GalleryView(name=BUILTIN, url="/artifacts", entries=count.get(BUILTIN, 0))
        return [ours] + [
            view.model_copy(update={"entries": count.get(view.name, 0), "unusable": bad.get(view.name, 0)})
            for view in await self.table.list()
        ]

    async def find(self, name: str) -> GalleryView:
        found = next((view for view in await self.list() if view.name == name), None)
        if found is None:
            raise UnknownGallery(f"There is no gallery {name}.", gallery=name)
        return found

    async def sync(self) -> None:
        """Take over what the database holds, if that is something else than before."""
        async with self._lock:
            state = await self.table.state()
            if state == self._seen:
                return
            copies, uploads = await self.table.copies(), await self.uploads.list()
            index = await asyncio.to_thread(self._together, copies, uploads)
            self.catalogue.replace(index.entries, index.unusable)
            self._seen = state

    async def run(self) -> None:
        """Beside the requests: follow other replicas, and read galleries again when it is their turn."""
        while True:
            try:
                await self.sync()
                due = await self.table.claim(older_than=self.refresh_every)
                await asyncio.gather(*(self._read_again(copy, patient=True) for copy in due))
            except NodesmithError as error:
                log.info("galleries.not_synced", error=error.message)
            await asyncio.sleep(self.look_every_s)

    async def _read_again(self, copy: GalleryCopy, *, patient: bool) -> None:
        """The last good copy stays in use when no source has a better one."""
        name = copy.request.name
        try:
            await self.table.refreshed(name, await self.reader.read(copy.request, copy, patient=patient))
        except SourceFailed as failed:
            log.warning("gallery.not_read", gallery=name, error=str(failed))
            await self.table.failed(name, str(failed), failed.cooling)

    def _together(self, copies: Sequence[GalleryCopy], uploads: Sequence[UploadView]) -> Index:
        return merged([*map(_read, copies), Index([*map(uploaded, uploads), *self.builtin])])


def _read(copy: GalleryCopy) -> Index:
    request = copy.request
    try:
        return read_index(copy.content, gallery=request.name, base=address(copy.source), insecure=request.insecure)
    except NotAnIndex as refused:
        return Index([], [Unusable(request.name, "(all)", str(refused))])


def uploaded(upload: UploadView) -> Entry:
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
