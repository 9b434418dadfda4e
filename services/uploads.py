"""Archives of the operator's own, in the gallery that the API serves itself."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from contracts.galleries import BUILTIN, UploadView
from domain.errors import UnknownBackend, UploadExists, UploadRefused
from domain.identity import family_of
from gallery.entries import Entry
from services.galleries import Galleries

ROUTE = "/artifacts"


class Table(Protocol):
    async def add(self, upload: UploadView, *, by: str) -> UploadView: ...
    async def remove(self, name: str, version: str) -> UploadView | None: ...
    async def uses(self, uri: str) -> bool: ...


class Stored(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...


class Storeroom(Protocol):
    def check(self, size: int) -> None: ...
    async def take(self, name: str, version: str, content: AsyncIterator[bytes]) -> Stored: ...
    async def drop(self, file: str) -> None: ...


@dataclass(frozen=True)
class UploadDesk:
    table: Table
    storeroom: Storeroom
    galleries: Galleries
    builtin: Sequence[Entry]

    async def take(
        self, wanted: UploadView, content: AsyncIterator[bytes], *, by: str, announced: int = 0
    ) -> UploadView:
        """Store an archive and list it; `wanted.sha256`, if given, is what it must have."""
        self._refuse_ours(wanted)
        self.storeroom.check(announced)
        stored = await self.storeroom.take(wanted.name, wanted.version, content)
        told = {"uri": f"{ROUTE}/{stored.file}", "sha256": stored.sha256, "size": stored.size, "gallery": BUILTIN}
        upload = wanted.model_copy(update=told)
        if wanted.sha256 and wanted.sha256 != stored.sha256:
            await self._drop(upload)
            raise UploadRefused(f"What came has the sha256 {stored.sha256}, not the one that was announced.")
        try:
            kept = await self.table.add(upload, by=by)
        except UploadExists:
            await self._drop(upload)
            raise
        await self.galleries.sync()
        return kept

    async def remove(self, name: str, version: str) -> UploadView:
        """Take it off the list. Nodes that have it keep it; an install under way that still fetches it fails."""
        gone = await self.table.remove(name, version)
        if gone is None:
            raise UnknownBackend(f"{name} {version} was not uploaded.", backend=name)
        await self._drop(gone)
        await self.galleries.sync()
        return gone

    def _refuse_ours(self, wanted: UploadView) -> None:
        taken = {(family_of(entry.artifact.name), entry.artifact.version) for entry in self.builtin}
        if (family_of(wanted.name), wanted.version) in taken:
            raise UploadExists(f"{wanted.name} {wanted.version} comes with Nodesmith.", field="version")

    async def _drop(self, upload: UploadView) -> None:
        """Another upload may have the same file: equal content, equal name."""
        if not await self.table.uses(upload.uri):
            await self.storeroom.drop(upload.uri.removeprefix(f"{ROUTE}/"))
