"""An HTTP artifact server with Range, If-Range, a configurable rate, and a counter of sent bytes."""

import asyncio
import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

CHUNK = 64 * 1024


@dataclass(frozen=True)
class Package:
    """An archive with one file of random bytes."""

    content: bytes
    noise_sha256: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def package(size: int, members: Sequence[tarfile.TarInfo] = ()) -> Package:
    """Create a backend of about `size` incompressible bytes."""
    noise = os.urandom(size)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in (("run.sh", b"#!/bin/sh\nexec sleep 60\n"), ("noise", noise)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
        for entry in members:
            archive.addfile(entry)
    return Package(gzip.compress(packed.getvalue(), compresslevel=1), hashlib.sha256(noise).hexdigest())


@dataclass
class SlowSource:
    """Serves `/NAME` for everything in `files`."""

    url: str
    bytes_per_second: float = float("inf")
    files: dict[str, bytes] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    going: asyncio.Event = field(default_factory=asyncio.Event)
    """set when the first byte is sent"""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a killed client or the end of the test closes the connection
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        name = head.split(" ")[1].lstrip("/")
        self.requests.append(head)
        content = self.files.get(name)
        if content is None:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        asked = re.search(r"(?im)^range: bytes=(\d+)-", head)
        begin = int(asked.group(1)) if asked else 0
        status = f"206 Partial Content\r\nContent-Range: bytes {begin}-{len(content) - 1}/{len(content)}"
        etag = hashlib.sha256(content).hexdigest()
        writer.write(
            f"HTTP/1.1 {status if asked else '200 OK'}\r\nContent-Length: {len(content) - begin}\r\n"
            f'ETag: "{etag}"\r\nAccept-Ranges: bytes\r\nConnection: close\r\n\r\n'.encode()
        )
        if not head.startswith("HEAD"):
            await self._send(name, content[begin:], writer)

    async def _send(self, name: str, content: bytes, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(content), CHUNK):
            piece = content[start : start + CHUNK]
            writer.write(piece)
            await writer.drain()
            self.sent[name] = self.sent.get(name, 0) + len(piece)
            self.going.set()
            await asyncio.sleep(len(piece) / self.bytes_per_second)


@asynccontextmanager
async def slow_source() -> AsyncIterator[SlowSource]:
    source = SlowSource(url="")
    server = await asyncio.start_server(source.answer, "127.0.0.1", 0)
    source.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield source
    finally:
        server.close()
