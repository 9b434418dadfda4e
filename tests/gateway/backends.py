"""Backends for the gateway's tests: real echo-lm processes, and scripted servers for what those never do."""

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from nodesmith.gallery import builtin

SOURCES = Path(builtin.__file__).parent / "builtin_backends" / "echo-lm"


@dataclass
class EchoLm:
    """One real process."""

    process: subprocess.Popen[bytes]
    address: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def echo_lm(folder: Path, *arguments: str, version: str = "1") -> AsyncIterator[EchoLm]:
    """Start it as a node does, and wait until it is ready."""
    place = Path(folder) / f"echo-lm-{secrets.token_hex(4)}"
    place.mkdir(parents=True)
    for source in (SOURCES / "shared", SOURCES / version):
        for file in source.iterdir():
            (place / file.name).write_bytes(file.read_bytes())
    argv = [sys.executable, "-u", str(place / "server.py"), "--addr", "127.0.0.1:0", *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        try:
            line = await asyncio.to_thread(process.stdout.readline)
            backend = EchoLm(process, line.decode().split()[-1])
            await _is_ready(backend.address)
            yield backend
        finally:
            process.kill()


async def _is_ready(address: str) -> None:
    async with httpx2.AsyncClient(trust_env=False) as client, asyncio.timeout(30):
        while (await client.get(f"http://{address}/health")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


@dataclass
class Scripted:
    """A server that does what its script says with each request."""

    address: str
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """a connection was closed by the other side"""


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    """`script(reader, writer, head)` answers one request whose head has been read; the body has not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    site.heads.append(head)
                    await script(reader, writer, head)
        finally:
            site.ended.set()
            writer.transport.abort()

    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=2**20)
    port = server.sockets[0].getsockname()[1]
    site = Scripted(f"127.0.0.1:{port}")
    try:
        yield site
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def length_of(head: bytes) -> int:
    lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(lines[0].partition(b":")[2]) if lines else 0


def answering(content: bytes = b"{}") -> Script:
    """Read the whole body, then answer."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await reader.readexactly(length_of(head))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))
        await writer.drain()

    return script
