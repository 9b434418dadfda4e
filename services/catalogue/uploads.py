"""Uploads: the operator's own archives, in the built-in gallery that the API serves."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from nodesmith.domain.errors import UnknownBackend, UploadExists, UploadRefused
from nodesmith.domain.gallery import BUILTIN, Upload
from nodesmith.domain.identity import family_of
from nodesmith.gallery.entries import Entry
from nodesmith.services.catalogue.galleries import Galleries

ROUTE = "/artifacts"


class UploadStore(Protocol):
    async def add(self, upload: Upload, *, by: str) -> Upload: ...
    async def remove(self, name: str, version: str) -> Upload | None: ...
    async def uses(self, uri: str) -> bool: ...


class StoredUpload(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...


class UploadFolder(Protocol):
    def check(self, size: int) -> None: ...
    async def take(self, name: str, version: str, content: AsyncIterator[bytes]) -> StoredUpload: ...
    async def drop(self, file: str) -> None: ...


@dataclass(frozen=True)
class UploadService:
    table: UploadStore
    folder: UploadFolder
    galleries: Galleries
    builtin: Sequence[Entry]

    async def take(self, wanted: Upload, content: AsyncIterator[bytes], *, by: str, announced: int = 0) -> Upload:
        """Store an archive and list it; if `wanted.sha256` is given, the content must match it."""
        self._refuse_builtin(wanted)
        self.folder.check(announced)
        stored = await self.folder.take(wanted.name, wanted.version, content)
        uri = f"{ROUTE}/{stored.file}"
        upload = replace(wanted, uri=uri, sha256=stored.sha256, size=stored.size, gallery=BUILTIN)
        if wanted.sha256 and wanted.sha256 != stored.sha256:
            await self._drop(upload)
            raise UploadRefused(f"The uploaded file has the sha256 {stored.sha256}, not the announced one.")
        try:
            kept = await self.table.add(upload, by=by)
        except UploadExists:
            await self._drop(upload)
            raise
        await self.galleries.sync()
        return kept

    async def remove(self, name: str, version: str) -> Upload:
        """Delete an upload. Nodes that have it keep it; an install that is still downloading it fails."""
        removed = await self.table.remove(name, version)
        if removed is None:
            raise UnknownBackend(f"{name} {version} was not uploaded.", backend=name)
        await self._drop(removed)
        await self.galleries.sync()
        return removed

    def _refuse_builtin(self, wanted: Upload) -> None:
        taken = {(family_of(entry.artifact.name), entry.artifact.version) for entry in self.builtin}
        if (family_of(wanted.name), wanted.version) in taken:
            raise UploadExists(f"{wanted.name} {wanted.version} comes with Nodesmith.", field="version")

    async def _drop(self, upload: Upload) -> None:
        """Delete the file unless another upload with the same content uses it."""
        if not await self.table.uses(upload.uri):
            await self.folder.drop(upload.uri.removeprefix(f"{ROUTE}/"))
