"""A small forward proxy: absolute URLs and CONNECT, an optional password, and names that only it can resolve."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.agent.web import Web

_LOCAL = "127.0.0.1"


@dataclass
class Proxy:
    port: int = 0
    credential: str = ""
    """required Proxy-Authorization; empty: none"""
    knows: dict[str, Web] = field(default_factory=dict)
    """host:port -> the server behind it"""
    passed: list[str] = field(default_factory=list)
    """METHOD host:port of all forwarded requests"""

    def url(self, login: str = "") -> str:
        return f"http://{login}{_LOCAL}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._pass_on(reader, writer)
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        if self.credential and f"proxy-authorization: {self.credential}".lower().encode() not in head.lower():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        host = target if method == "CONNECT" else urlsplit(target).netloc
        if host not in self.knows:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        self.passed.append(f"{method} {host}")
        behind, to = await asyncio.open_connection(_LOCAL, int(self.knows[host].url.rsplit(":", 1)[1]))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            path = target.split(host, 1)[1].encode()
            to.write(head.replace(target.encode(), path, 1).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        await asyncio.gather(_pump(reader, to), _pump(behind, writer))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while block := await source.read(65536):
                sink.write(block)
                await sink.drain()
    finally:
        sink.close()


@asynccontextmanager
async def forward_proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    serving: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.create_task(proxy.serve(reader, writer)))

    server = await asyncio.start_server(accept, _LOCAL, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
