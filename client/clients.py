"""The two clients: `Client` blocks, `AsyncClient` is awaited. Both have the same resources."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Generic, Self

from nodesmith.client.calls import Async, Mode, Sync, Transport
from nodesmith.client.errors import ClientError
from nodesmith.client.exchange import ApiAddress
from nodesmith.client.following import Follower, Update, closed_stream
from nodesmith.client.polling import BATCH_EVERY_S, BatchFollower, BatchUpdate, LogsFollower, LogsUpdate
from nodesmith.client.resources.access import Audit, Invites, Keys, Sessions, Tokens
from nodesmith.client.resources.backends import Backends, Galleries, Sources, Uploads
from nodesmith.client.resources.batches import Batches, Hold
from nodesmith.client.resources.deployments import Deployments
from nodesmith.client.resources.nodes import Models, Nodes
from nodesmith.client.resources.operations import Operations, operation_call
from nodesmith.client.transports import AsyncTransport, SyncTransport
from nodesmith.contracts.http.batches import BatchDetail
from nodesmith.contracts.http.operations import OperationDetail


class _Resources(Generic[Mode]):
    """Every group of calls of the API."""

    def __init__(self, transport: Transport) -> None:
        self.nodes: Nodes[Mode] = Nodes(transport)
        self.models: Models[Mode] = Models(transport)
        self.deployments: Deployments[Mode] = Deployments(transport)
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
        accepted = client.operations.create(OperationBody(kind=Kind.INSTALL, node="a", backend="echo"))
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
        self._transport = SyncTransport(ApiAddress(url.rstrip("/"), token, ca_file), retries=retries, pause=pause)
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

    def wait(self, op_id: str) -> OperationDetail:
        """Return the operation when it has ended, however it ended; see its `state`."""
        for update in self.watch(op_id, is_known_to_exist=True):
            if isinstance(update, OperationDetail):
                last = update
        return last

    def wait_batch(self, batch_id: str) -> BatchDetail:
        """Return the batch when it has ended; `members` has the result on each node."""
        for update in self.watch_batch(batch_id, is_known_to_exist=True):
            if isinstance(update, BatchDetail):
                last = update
        return last

    def watch(self, op_id: str, *, is_known_to_exist: bool = False) -> Iterator[Update]:
        """Yield the operation now and at each change, and progress ticks in between, until it ends.

        `LinkLost` says that the API does not answer at the moment. `is_known_to_exist`: the operation was accepted,
        so that an unanswered first request is repeated too.
        """
        follower, transport = Follower(op_id, is_known_to_exist=is_known_to_exist), self._transport
        while not follower.has_ended:
            try:
                yield from follower.take_detail(transport.send_once(operation_call(op_id)))
                if not follower.has_ended:
                    yield from self._listen(follower)
            except ClientError as error:
                lost, pause_s = follower.back_off.take_failure(error)
                yield lost
                transport.pause(pause_s)

    def watch_batch(self, batch_id: str, *, is_known_to_exist: bool = False) -> Iterator[BatchUpdate]:
        """Yield the batch now and at each change until it ends; `LinkLost` as in `watch`."""
        follower, transport = BatchFollower(batch_id, is_known_to_exist=is_known_to_exist), self._transport
        while True:
            pause_s = BATCH_EVERY_S
            try:
                yield from follower.take(transport.send_once(follower.call))
            except ClientError as error:
                lost, pause_s = follower.back_off.take_failure(error)
                yield lost
            if follower.has_ended:
                return
            transport.pause(pause_s)

    def watch_logs(self, node: str, backend: str, *, lines: int = 200) -> Iterator[LogsUpdate]:
        """Yield the last lines of a backend's output, then new ones, without end; `LinkLost` as in `watch`."""
        follower, transport = LogsFollower(node, backend, lines=lines), self._transport
        while True:
            try:
                yield from follower.take(transport.send_once(follower.call))
            except ClientError as error:
                lost, pause_s = follower.back_off.take_failure(error)
                yield lost
                transport.pause(pause_s)

    def _listen(self, follower: Follower) -> Iterator[Update]:
        transport = self._transport
        with transport.events({"op_id": follower.op_id}, follower.last_event_id) as events:
            for event in events:
                if follower.needs_detail(event):
                    yield from follower.take_detail(transport.send_once(operation_call(follower.op_id)))
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
        self._transport = AsyncTransport(ApiAddress(url.rstrip("/"), token, ca_file), retries=retries, pause=pause)
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

    async def wait(self, op_id: str) -> OperationDetail:
        """As `Client.wait`."""
        async for update in self.watch(op_id, is_known_to_exist=True):
            if isinstance(update, OperationDetail):
                last = update
        return last

    async def wait_batch(self, batch_id: str) -> BatchDetail:
        """As `Client.wait_batch`."""
        async for update in self.watch_batch(batch_id, is_known_to_exist=True):
            if isinstance(update, BatchDetail):
                last = update
        return last

    async def watch(self, op_id: str, *, is_known_to_exist: bool = False) -> AsyncGenerator[Update, None]:
        """As `Client.watch`."""
        follower, transport = Follower(op_id, is_known_to_exist=is_known_to_exist), self._transport
        while not follower.has_ended:
            try:
                for update in follower.take_detail(await transport.send_once(operation_call(op_id))):
                    yield update
                if not follower.has_ended:
                    async with aclosing(self._listen(follower)) as updates:
                        async for update in updates:
                            yield update
            except ClientError as error:
                lost, pause_s = follower.back_off.take_failure(error)
                yield lost
                await transport.pause(pause_s)

    async def watch_batch(self, batch_id: str, *, is_known_to_exist: bool = False) -> AsyncGenerator[BatchUpdate, None]:
        """As `Client.watch_batch`."""
        follower, transport = BatchFollower(batch_id, is_known_to_exist=is_known_to_exist), self._transport
        while True:
            pause_s = BATCH_EVERY_S
            try:
                for update in follower.take(await transport.send_once(follower.call)):
                    yield update
            except ClientError as error:
                lost, pause_s = follower.back_off.take_failure(error)
                yield lost
            if follower.has_ended:
                return
            await transport.pause(pause_s)

    async def watch_logs(self, node: str, backend: str, *, lines: int = 200) -> AsyncGenerator[LogsUpdate, None]:
        """As `Client.watch_logs`."""
        follower, transport = LogsFollower(node, backend, lines=lines), self._transport
        while True:
            try:
                for update in follower.take(await transport.send_once(follower.call)):
                    yield update
            except ClientError as error:
                lost, pause_s = follower.back_off.take_failure(error)
                yield lost
                await transport.pause(pause_s)

    async def _listen(self, follower: Follower) -> AsyncGenerator[Update, None]:
        transport = self._transport
        async with transport.events({"op_id": follower.op_id}, follower.last_event_id) as events:
            async for event in events:
                if follower.needs_detail(event):
                    updates = follower.take_detail(await transport.send_once(operation_call(follower.op_id)))
                else:
                    updates = follower.take_event(event)
                for update in updates:
                    yield update
                if follower.has_ended:
                    return
        raise closed_stream(self.url)
