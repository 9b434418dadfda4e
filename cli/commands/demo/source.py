"""The demo's artifact server: a slow HTTP server that supports Range and counts the bytes sent to each client."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from nodesmith.cli.commands.demo.artifact import DemoArtifact

_CHUNK = 128 * 1024
_LOOPBACK = "127.0.0.1"


@dataclass
class Counter:
    """What the server has sent to one client."""

    sent: int = 0
    last_byte_at: float = 0.0
    """on the clock of `time.monotonic`"""
    requests: int = 0


@dataclass
class Source:
    """Serves `/CLIENT/NAME`: the path names the client, because all clients run on this machine."""

    bytes_per_second: float
    port: int = 0
    artifacts: dict[str, DemoArtifact] = field(default_factory=dict)
    counters: dict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))

    def offer(self, name: str, artifact: DemoArtifact) -> None:
        self.artifacts[f"{name}.tar.gz"] = artifact

    def uri(self, client: str, name: str) -> str:
        return f"http://{_LOOPBACK}:{self.port}/{client}/{name}.tar.gz"

    def counter(self, client: str, name: str) -> Counter:
        return self.counters[f"/{client}/{name}.tar.gz"]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The demo kills clients, so lost connections are expected.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            await self._respond(head, writer)
        writer.close()

    async def _respond(self, head: str, writer: asyncio.StreamWriter) -> None:
        method, path, _ = head.split(" ", 2)
        artifact = self.artifacts.get(path.rpartition("/")[2])
        if artifact is None:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return await writer.drain()
        begin = _range_start(head, artifact)
        writer.write(_headers(artifact, begin))
        self.counters[path].requests += 1
        if method == "GET":
            await self._send(artifact.content[begin or 0 :], self.counters[path], writer)
        return await writer.drain()

    async def _send(self, content: bytes, counter: Counter, writer: asyncio.StreamWriter) -> None:
        began = time.monotonic()
        for start in range(0, len(content), _CHUNK):
            piece = content[start : start + _CHUNK]
            writer.write(piece)
            await writer.drain()
            counter.sent += len(piece)
            counter.last_byte_at = time.monotonic()
            ahead = (start + len(piece)) / self.bytes_per_second - (time.monotonic() - began)
            await asyncio.sleep(max(ahead, 0))


def _range_start(head: str, artifact: DemoArtifact) -> int | None:
    """Return the start of the requested range; None for a request of the whole or of another version."""
    requested = re.search(r"(?im)^range: bytes=(\d+)-", head)
    condition = re.search(r"(?im)^if-range: (\S+)", head)
    if requested is None or (condition is not None and condition[1] != f'"{artifact.sha256}"'):
        return None
    return min(int(requested[1]), artifact.size)


def _headers(artifact: DemoArtifact, begin: int | None) -> bytes:
    lines = [
        "HTTP/1.1 200 OK" if begin is None else "HTTP/1.1 206 Partial Content",
        f"Content-Length: {artifact.size - (begin or 0)}",
        f'ETag: "{artifact.sha256}"',
        "Accept-Ranges: bytes",
        "Connection: close",
    ]
    if begin is not None:
        lines.append(f"Content-Range: bytes {begin}-{artifact.size - 1}/{artifact.size}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@asynccontextmanager
async def serve(bytes_per_second: float) -> AsyncIterator[Source]:
    source = Source(bytes_per_second)
    server = await asyncio.start_server(source.answer, _LOOPBACK, 0, limit=64 * 1024)
    source.port = server.sockets[0].getsockname()[1]
    try:
        yield source
    finally:
        server.close()
