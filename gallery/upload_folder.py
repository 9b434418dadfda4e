"""Stores uploaded archives in the folder of the built-in gallery: atomically, under a name derived from the content."""

import asyncio
import contextlib
import hashlib
import os
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nodesmith.domain.errors import UploadRefused, UploadTooLarge

_ENDINGS = {b"\x1f\x8b": ".tar.gz", b"\x28\xb5\x2f\xfd": ".tar.zst"}
_BLOCK = 1024 * 1024
_UNFINISHED = ".upload-"
_ABANDONED_S = 86400


@dataclass(frozen=True)
class StoredFile:
    file: str
    sha256: str
    size: int


class UploadFolder:
    def __init__(self, folder: Path, *, limit: int) -> None:
        self._folder = folder
        self._limit = limit

    def check(self, size: int) -> None:
        """Refuse an archive above the limit, as soon as its size is known."""
        if size > self._limit:
            raise UploadTooLarge(f"The archive is larger than {self._limit} bytes.", limit=self._limit)

    async def take(self, name: str, version: str, content: AsyncIterator[bytes]) -> StoredFile:
        """Stream the archive to disk; if the upload breaks off, nothing is left behind."""
        self._folder.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self._drop_abandoned)
        unfinished = self._folder / f"{_UNFINISHED}{uuid.uuid4().hex}"
        try:
            with unfinished.open("xb") as file:
                sha256, size, ending = await self._write(file, content)
                await asyncio.to_thread(_flush, file)
            stored = StoredFile(f"{_plain(name)}-{_plain(version)}-{sha256[:12]}{ending}", sha256, size)
            await asyncio.to_thread(unfinished.replace, self._folder / stored.file)
        except OSError as error:
            raise UploadRefused(f"The archive cannot be stored: {error.strerror}.") from error
        finally:
            unfinished.unlink(missing_ok=True)
        return stored

    def _drop_abandoned(self) -> None:
        """Delete files of an API that was killed during an upload; a fresh file may belong to another replica."""
        for left in self._folder.glob(f"{_UNFINISHED}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _ABANDONED_S:
                    left.unlink()

    async def drop(self, file: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread((self._folder / file).unlink)

    async def _write(self, file: BinaryIO, content: AsyncIterator[bytes]) -> tuple[str, int, str]:
        digest, size, waiting = hashlib.sha256(), 0, bytearray()
        ending = ""
        async for part in content:
            waiting += part
            size += len(part)
            self.check(size)
            if len(waiting) >= _BLOCK:
                ending = ending or _ending(waiting)
                await asyncio.to_thread(_put, file, digest, bytes(waiting))
                waiting.clear()
        ending = ending or _ending(waiting)
        await asyncio.to_thread(_put, file, digest, bytes(waiting))
        return digest.hexdigest(), size, ending


def _put(file: BinaryIO, digest: "hashlib._Hash", block: bytes) -> None:
    digest.update(block)
    file.write(block)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _ending(begin: bytearray) -> str:
    for mark, ending in _ENDINGS.items():
        if begin.startswith(mark):
            return ending
    raise UploadRefused("The body is not an archive; .tar.gz and .tar.zst are accepted.")


def _plain(word: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", word)
