"""Drives the blocking and the asynchronous client in the same way, and records their pauses instead of waiting."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from nodesmith.client import AsyncClient, Client


class Driver:
    def __init__(self, client: Client | AsyncClient, pauses: list[float]) -> None:
        self.client = client
        self.pauses = pauses

    async def call(self, send: Callable[[Any], Any]) -> Any:
        """Return the answer of one call."""
        answer = send(self.client)
        return await answer if inspect.isawaitable(answer) else answer

    async def collect(self, begin: Callable[[Any], Any], *, limit: int | None = None) -> list[Any]:
        """Return what an iterator yields, up to a limit."""
        found: list[Any] = []
        async for each in self.each(begin):
            found.append(each)
            if len(found) == limit:
                break
        return found

    async def each(self, begin: Callable[[Any], Any]) -> AsyncIterator[Any]:
        iterator = begin(self.client)
        if inspect.isasyncgen(iterator):
            async for each in iterator:
                yield each
        else:
            for each in iterator:
                yield each


@asynccontextmanager
async def open_driver(kind: str, url: str, token: str = "secret", **options: Any) -> AsyncIterator[Driver]:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    if kind == "Client":
        with Client(url, token, pause=pauses.append, **options) as client:
            yield Driver(client, pauses)
    else:
        async with AsyncClient(url, token, pause=pause, **options) as later:
            yield Driver(later, pauses)
