"""The two clients: `Client` blocks, `AsyncClient` is awaited. Both have the same resources."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Self

from nodesmith.client.calls import Async, Mode, Sync, Transport
from nodesmith.client.errors import ClientError
from nodesmith.client.exchange import ApiAddress
from nodesmith.client.following import Follower, Update, closed_stream, detail_call
from nodesmith.client.resources.access import Audit, Invites, Keys, Sessions, Tokens
from nodesmith.client.resources.backends import Backends, Galleries, Sources, Uploads
from nodesmith.client.resources.batches import Batches, Hold
from nodesmith.client.resources.nodes import Models, Nodes
from nodesmith.client.resources.operations import Operations
from nodesmith.client.transports import AsyncTransport, SyncTransport
from nodesmith.contracts.http.operations import OperationDetail
from nodesmith.domain.operation import ENDED


class _Resources(Generic[Mode]):
    """Every group of calls of the API."""

    def __init__(self, transport: Transport) -> None:
        self.nodes: Nodes[Mode] = Nodes(transport)
        self.models: Models[Mode] = Models(transport)
        self.operations: Operations[Mode] = Operations(transport)
        self.batches: Batches[Mode] = Batches(transport)
        self.hold: Hold[Mode] = Hold(transport)
        self.backends: Backends[Mode] = Backends(transport)
        self.galleries: Galleries[Mode] = Galleries(transport)
        self.uploads: Uploads[Mode] = Uploads(transport)
        self.sources: Sources[Mode] = Sources(transport)
        self.tokens: Tokens[Mode] = Tokens(transport)
        self.invites: Invites[Mode] = Invites(transport)
        self.sessions: Sessions[Mode] = Sessions(transport)
        self.keys: Keys[Mode] = Keys(transport)
        self.audit: Audit[Mode] = Audit(transport)


class Client(_Resources[Sync]):
    """A blocking client of one API with one token.

    with Client("https://host:8900", token) as client:
        accepted = client.operations.create(OperationBody(kind="install", node="a", backend="echo"))
        operation = client.wait(accepted.op_id)
    """

    def __init__(
        self,
        url: str,
        token: str,
        ca_file: Path | None = None,
        *,
        retries: int = 1,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport = SyncTransport(ApiAddress(url, token, ca_file), retries=retries, pause=pause)
        super().__init__(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transport.close()

    @property
    def url(self) -> str:
        return self._transport.address.url

    def watch(self, op_id: str, *, is_known_to_exist: bool = False) -> Iterator[Update]:
        """Yield the operation now and at each change, and progress ticks in between, until it ends.

        `LinkLost` says that the API does not answer at the moment. `is_known_to_exist`: the operation was accepted,
        so that an unanswered first request is repeated too.
        """
        follower, transport = Follower(op_id, is_known_to_exist=is_known_to_exist), self._transport
        while not follower.has_ended:
            try:
                yield from follower.take_detail(transport.send(detail_call(op_id)))
                if not follower.has_ended:
                    yield from self._listen(follower)
            except ClientError as error:
                lost, pause_s = follower.take_failure(error)
                yield lost
                transport.pause(pause_s)

    def wait(self, op_id: str) -> OperationDetail:
        """Return the operation when it has ended, however it ended; see its `state`."""
        for update in self.watch(op_id, is_known_to_exist=True):
            if isinstance(update, OperationDetail) and update.state in ENDED:
                return update
        raise AssertionError("a watch ends with the end of the operation")

    def _listen(self, follower: Follower) -> Iterator[Update]:
        transport = self._transport
        with transport.events({"op_id": follower.op_id}, follower.last_event_id) as events:
            for event in events:
                if follower.needs_detail(event):
                    yield from follower.take_detail(transport.send(detail_call(follower.op_id)))
                else:
                    yield from follower.take_event(event)
                if follower.has_ended:
                    return
        raise closed_stream(self.url)


class AsyncClient(_Resources[Async]):
    """The same client for asyncio: every call is awaited, every list is iterated with `async for`."""

    def __init__(
        self,
        url: str,
        token: str,
        ca_file: Path | None = None,
        *,
        retries: int = 1,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = AsyncTransport(ApiAddress(url, token, ca_file), retries=retries, pause=pause)
        super().__init__(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._transport.close()

    @property
    def url(self) -> str:
        return self._transport.address.url

    async def watch(self, op_id: str, *, is_known_to_exist: bool = False) -> AsyncIterator[Update]:
        """As `Client.watch`."""
        follower, transport = Follower(op_id, is_known_to_exist=is_known_to_exist), self._transport
        while not follower.has_ended:
            try:
                for update in follower.take_detail(await transport.send(detail_call(op_id))):
                    yield update
                if not follower.has_ended:
                    async for update in self._listen(follower):
                        yield update
            except ClientError as error:
                lost, pause_s = follower.take_failure(error)
                yield lost
                await transport.pause(pause_s)

    async def wait(self, op_id: str) -> OperationDetail:
        """As `Client.wait`."""
        async for update in self.watch(op_id, is_known_to_exist=True):
            if isinstance(update, OperationDetail) and update.state in ENDED:
                return update
        raise AssertionError("a watch ends with the end of the operation")

    async def _listen(self, follower: Follower) -> AsyncIterator[Update]:
        transport = self._transport
        async with transport.events({"op_id": follower.op_id}, follower.last_event_id) as events:
            async for event in events:
                if follower.needs_detail(event):
                    updates = follower.take_detail(await transport.send(detail_call(follower.op_id)))
                else:
                    updates = follower.take_event(event)
                for update in updates:
                    yield update
                if follower.has_ended:
                    return
        raise closed_stream(self.url)
