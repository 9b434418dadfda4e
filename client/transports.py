"""How calls are sent: with a blocking HTTP client, or with an asynchronous one. Failed calls are sent again if safe."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, BinaryIO

import httpx2

from nodesmith.client.calls import Call
from nodesmith.client.errors import ClientError
from nodesmith.client.exchange import (
    BASE,
    STREAM_TIMEOUT,
    ApiAddress,
    failure,
    is_repeatable,
    pause_s,
    read_answer,
    refusal,
    request_of,
)
from nodesmith.client.sse import EventParser, ServerSentEvent

Query = dict[str, Any]

_CHUNK = 1024 * 1024


class SyncTransport:
    """Sends each call at once and returns its answer."""

    def __init__(self, address: ApiAddress, *, retries: int, pause: Callable[[float], None] = time.sleep) -> None:
        self.address = address
        self.pause = pause
        self._retries = retries
        self._http = httpx2.Client(**address.options())

    def close(self) -> None:
        self._http.close()

    def send(self, call: Call[Any]) -> Any:
        """Send the call; if that fails and the call may be repeated, wait and send it again, with the same key."""
        request = request_of(call)
        for left in range(self._retries if is_repeatable(call) else 0, -1, -1):
            try:
                return self._attempt(call, request)
            except ClientError as error:
                if not left or not error.is_retryable:
                    raise
                self.pause(pause_s(error))
        raise AssertionError("the last attempt returns or raises")

    def send_once(self, call: Call[Any]) -> Any:
        """Send the call without a repetition, for a caller that has its own."""
        return self._attempt(call, request_of(call))

    def iterate(self, call: Call[Any]) -> Iterator[Any]:
        """Yield the items of all pages."""
        page = self.send(call)
        yield from page.items
        while page.next_cursor:
            page = self.send(call.after(page.next_cursor))
            yield from page.items

    @contextmanager
    def events(self, query: Query, last_event_id: int) -> Iterator[Iterator[ServerSentEvent]]:
        """Open the event stream; a broken connection is an `Unreachable`."""
        try:
            with self._http.stream("GET", f"{BASE}/events", **_stream_parts(query, last_event_id)) as response:
                if response.is_error:
                    response.read()
                    raise refusal(response)
                yield self._parse(response)
        except httpx2.RequestError as error:
            raise failure(self.address.url, error) from error

    def _parse(self, response: httpx2.Response) -> Iterator[ServerSentEvent]:
        parser = EventParser()
        for line in response.iter_lines():
            yield from parser.feed(line)

    def _attempt(self, call: Call[Any], request: dict[str, Any]) -> Any:
        try:
            response = self._http.request(**request)
        except httpx2.RequestError as error:
            raise failure(self.address.url, error) from error
        return read_answer(call, response)


class AsyncTransport:
    """Sends each call when it is awaited."""

    def __init__(
        self, address: ApiAddress, *, retries: int, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.address = address
        self.pause = pause
        self._retries = retries
        self._http = httpx2.AsyncClient(**address.options())

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call[Any]) -> Any:
        """As `SyncTransport.send`."""
        request = request_of(call)
        for left in range(self._retries if is_repeatable(call) else 0, -1, -1):
            try:
                return await self._attempt(call, request)
            except ClientError as error:
                if not left or not error.is_retryable:
                    raise
                await self.pause(pause_s(error))
        raise AssertionError("the last attempt returns or raises")

    async def send_once(self, call: Call[Any]) -> Any:
        """As `SyncTransport.send_once`."""
        return await self._attempt(call, request_of(call))

    async def iterate(self, call: Call[Any]) -> AsyncIterator[Any]:
        """Yield the items of all pages."""
        page = await self.send(call)
        while True:
            for item in page.items:
                yield item
            if not page.next_cursor:
                return
            page = await self.send(call.after(page.next_cursor))

    @asynccontextmanager
    async def events(self, query: Query, last_event_id: int) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
        """Open the event stream; a broken connection is an `Unreachable`."""
        try:
            async with self._http.stream("GET", f"{BASE}/events", **_stream_parts(query, last_event_id)) as response:
                if response.is_error:
                    await response.aread()
                    raise refusal(response)
                async with aclosing(_parse(response)) as events:
                    yield events
        except httpx2.RequestError as error:
            raise failure(self.address.url, error) from error

    async def _attempt(self, call: Call[Any], request: dict[str, Any]) -> Any:
        if call.upload is not None:
            request = {**request, "content": _chunks(call.upload)}
        try:
            response = await self._http.request(**request)
        except httpx2.RequestError as error:
            raise failure(self.address.url, error) from error
        return read_answer(call, response)


async def _parse(response: httpx2.Response) -> AsyncGenerator[ServerSentEvent, None]:
    parser = EventParser()
    async for line in response.aiter_lines():
        for event in parser.feed(line):
            yield event


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK):
        yield chunk


def _stream_parts(query: Query, last_event_id: int) -> dict[str, Any]:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last_event_id)}
    return {"params": query, "headers": headers, "timeout": STREAM_TIMEOUT}
