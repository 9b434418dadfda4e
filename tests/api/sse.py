"""A reader of the event stream, over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.api.station import Api
from tests.deadlines import HANGS_S


@dataclass(frozen=True)
class Event:
    kind: str
    data: dict[str, Any]
    number: int | None
    """the SSE id; progress ticks have none"""


class Reader:
    """Reads event by event; a comment or a bare id is no event."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self, within: float = HANGS_S) -> Event:
        """The next event that is no notice about a model, which every change of a node causes."""
        async with asyncio.timeout(within):
            while (event := await self._next()).kind == "model":
                pass
            return event

    async def notice(self, model: str) -> Event:
        """The next notice about this model."""
        async with asyncio.timeout(HANGS_S):
            while (event := await self._next()).data != {"model": model}:
                pass
            return event

    async def take(self, count: int) -> list[Event]:
        return [await self.next() for _ in range(count)]

    async def comment(self) -> str:
        async with asyncio.timeout(HANGS_S):
            while not (line := await anext(self._lines)).startswith(":"):
                pass
            return line

    async def end(self) -> None:
        """Read until the server ends the stream."""
        async with asyncio.timeout(HANGS_S):
            async for _ in self._lines:
                pass

    async def _next(self) -> Event:
        fields: dict[str, str] = {}
        async for line in self._lines:
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "data" in fields:
                number = int(fields["id"]) if "id" in fields else None
                return Event(fields["event"], json.loads(fields["data"]), number)
            else:
                fields = {}
        raise EOFError


@asynccontextmanager
async def reading(api: Api, *, last_event_id: int | None = None, **query: Any) -> AsyncIterator[Reader]:
    """Open a stream; returns once the server has taken the reader in."""
    headers = {} if last_event_id is None else {"Last-Event-ID": str(last_event_id)}
    async with api.http.stream("GET", "/api/v1/events", params=query, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.aiter_lines()
        assert await anext(lines) == "retry: 1000"
        yield Reader(lines)
