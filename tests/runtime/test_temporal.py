"""Calls whose connection to Temporal breaks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import TemporalRuns, connect
from nodesmith.stack.servers.embedded import LOOPBACK


class Link:
    """Carries bytes between a client and a server until the next call, or one with these bytes, breaks it."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.partition(":")
        self._port = int(port)
        self.cut = False
        self.cut_at = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to = await asyncio.open_connection(self._host, self._port)
        back = asyncio.create_task(_pump(behind, writer))
        while (block := await reader.read(65536)) and not self._breaks(block):
            to.write(block)
        back.cancel()
        for side in (writer, to):
            side.transport.abort()

    def _breaks(self, block: bytes) -> bool:
        return self.cut or bool(self.cut_at and self.cut_at in block)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while block := await source.read(65536):
        sink.write(block)


@asynccontextmanager
async def linked(address: str) -> AsyncIterator[tuple[Link, TemporalRuns]]:
    link = Link(address)
    async with await asyncio.start_server(link.serve, LOOPBACK, 0) as server:
        here = f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        yield link, TemporalRuns(await connect(ControlSettings(temporal_address=here), lazy=True))


async def test_connection_lost_during_a_call_counts_as_no_answer(temporal_address: str) -> None:
    async with linked(temporal_address) as (link, runs):
        await runs.ping()
        link.cut = True
        with pytest.raises(ServiceUnavailable):
            await runs.ping()
