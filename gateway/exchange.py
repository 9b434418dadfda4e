"""One request: find a replica, send it, pass the response on; before the first byte another replica may be tried."""

import asyncio
from http import HTTPStatus
from typing import Protocol

import structlog

from nodesmith.gateway.answers import Refusal
from nodesmith.gateway.model_names import model_of, prompt_prefix
from nodesmith.gateway.requests import Header, Request, response_head
from nodesmith.gateway.routes import Replica, RouteTable
from nodesmith.gateway.upstream import ReplicaFailed, UpstreamConnection, UpstreamPool

log = structlog.stdlib.get_logger(__name__)

SENDS = 3
"""how often a request is sent; a request that kills replicas must not kill them all"""
_HTTP_1_0 = "1.0"


class ClientSide(Protocol):
    """The connection of the client."""

    def write(self, data: bytes) -> None: ...
    def attach(self, upstream: UpstreamConnection | None) -> None:
        """Let the client's speed limit how fast the replica is read."""


class Relay:
    """Passes one response on to the client, with the framing of the client's connection."""

    def __init__(self, request: Request, client: ClientSide, replica: str) -> None:
        self._client = client
        self._replica = replica
        self._is_old = request.version == _HTTP_1_0
        self._head = b""
        self._is_chunked = False
        self.keep_alive = request.keep_alive

    def begin(self, status: int, reason: bytes, headers: list[Header], *, has_length: bool) -> None:
        """Keep the head until the first part of the body, so that both are one write."""
        self._is_chunked = not has_length and not self._is_old
        self.keep_alive = self.keep_alive and (has_length or self._is_chunked)
        self._head = response_head(
            status, reason, headers, chunked=self._is_chunked, close=not self.keep_alive, replica=self._replica
        )
        # a response without a body, or with a slow one, has to begin without waiting for a part
        asyncio.get_running_loop().call_soon(self._send_head)

    def write(self, parts: list[bytes]) -> None:
        head, self._head = self._head, b""
        if self._is_chunked:
            parts = [piece for part in parts for piece in (b"%x\r\n" % len(part), part, b"\r\n")]
        self._client.write(b"".join([head, *parts]))

    def end(self) -> None:
        self._send_head()
        if self._is_chunked:
            self._client.write(b"0\r\n\r\n")

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._client.write(head)


class Exchange:
    """Carries requests out."""

    def __init__(self, routes: RouteTable, pool: UpstreamPool) -> None:
        self._routes = routes
        self._pool = pool

    async def run(self, request: Request, client: ClientSide) -> bool:
        """Return whether the client's connection stays open; raise a refusal if the gateway has to answer itself."""
        model = model_of(request.headers, request.query, request.body)
        prefix = prompt_prefix(model, request.body)
        deadline = self._routes.deadline()
        tried: set[str] = set()
        sends = 0
        while True:
            replica = await self._routes.acquire(model, prefix=prefix, tried=tried, deadline=deadline)
            try:
                keep_alive = await self._send(request, client, replica, fresh=request.body.is_spooled)
            except ReplicaFailed as error:
                sends += error.was_sent
                self._note_failure(request, replica, error, sends=sends)
                tried.add(replica.id)
            else:
                if replica.failed_until:
                    self._routes.succeed(model, replica)
                return keep_alive
            finally:
                self._routes.release(model, replica)

    def _note_failure(self, request: Request, replica: Replica, error: ReplicaFailed, *, sends: int) -> None:
        """Avoid the replica; raise unless the request may go to another one."""
        self._routes.fail(replica)
        log.warning("replica.failed", replica=replica.id, address=replica.route.address, error=str(error))
        if not error.before_answer:
            raise error
        if error.was_sent and (request.body.is_spooled or sends >= SENDS):
            text = "The replica failed before it answered; the request was not repeated."
            raise Refusal(HTTPStatus.BAD_GATEWAY, "replica_failed", text) from error

    async def _send(self, request: Request, client: ClientSide, replica: Replica, *, fresh: bool) -> bool:
        try:
            return await self._send_once(request, client, replica, fresh=fresh)
        except ReplicaFailed as error:
            if not (error.before_answer and error.reused):
                raise
        # The replica closed an idle connection at the same moment: that is no failure of the replica.
        return await self._send_once(request, client, replica, fresh=True)

    async def _send_once(self, request: Request, client: ClientSide, replica: Replica, *, fresh: bool) -> bool:
        upstream = await self._pool.connection(replica.route, fresh=fresh)
        relay = Relay(request, client, replica.id)
        client.attach(upstream)
        try:
            done = upstream.begin(relay, without_body=request.method == b"HEAD")
            await self._write(request, upstream, done)
            await done
            relay.end()
        except BaseException:
            upstream.abort()
            raise
        finally:
            client.attach(None)
        self._pool.keep(replica.route, upstream)
        return relay.keep_alive

    async def _write(self, request: Request, upstream: UpstreamConnection, done: "asyncio.Future[None]") -> None:
        """Send the request; stop if the replica responds before it has received all of a large body."""
        if not request.body.is_spooled:
            upstream.write(request.head() + request.body.content)
            return
        upstream.write(request.head())
        for part in request.body.parts():
            if done.done():
                return
            upstream.write(part)
            await upstream.drain()
