"""Connections to replicas: one request at a time each, kept open between requests."""

import asyncio
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol, cast

import httptools

from nodesmith.domain.routing import ReplicaRoute
from nodesmith.gateway.answers import Refusal
from nodesmith.gateway.requests import Header

CONNECT_S = 1.0
IDLE_S = 4.0
"""shorter than the keep-alive of common servers (uvicorn: 5 s): the side that closes first may lose a request"""
_IDLE_PER_REPLICA = 256
_HIGH_WATER = 256 * 1024
_SWITCHING = 101
_OK = 200


class ReplicaFailed(Exception):
    """The connection to the replica failed; `before_answer` says whether the client has received nothing yet."""

    def __init__(self, why: str, *, before_answer: bool, was_sent: bool = False, reused: bool = False) -> None:
        super().__init__(why)
        self.before_answer = before_answer
        self.was_sent = was_sent
        """the replica may have received the request"""
        self.reused = reused
        """the connection had served an earlier request: the replica may simply have closed it"""


class Receiver(Protocol):
    """Receives the response of a replica."""

    def begin(self, status: int, reason: bytes, headers: list[Header], *, has_length: bool) -> None: ...
    def write(self, parts: list[bytes]) -> None: ...


class UpstreamConnection(asyncio.Protocol):
    """One connection. `send` writes a request and returns when the response has been passed on completely."""

    def __init__(self) -> None:
        self.used = 0
        """requests that were sent"""
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._headers: list[Header] = []
        self._reason = b""
        self._body: list[bytes] = []
        self._has_answered = False
        self._is_final = False
        """the head that is being parsed is not an interim one (1xx)"""
        self._ends_with_connection = False
        self._without_body = False
        self.last_byte_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, receiver: Receiver, *, without_body: bool) -> "asyncio.Future[None]":
        """Prepare for one response; the future ends with it, or with `ReplicaFailed`."""
        self.used += 1
        self._parser = httptools.HttpResponseParser(self)
        self._receiver = receiver
        self._headers, self._body, self._reason = [], [], b""
        self._has_answered = self._is_final = self._ends_with_connection = False
        self._without_body = without_body
        self.last_byte_at = time.monotonic()
        self._done = asyncio.get_running_loop().create_future()
        return self._done

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the replica has taken what was written."""
        if self._drained is not None:
            await self._drained

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def time_out(self, seconds: float) -> None:
        """Give up on a replica that sends nothing; the request is not repeated elsewhere."""
        text = f"The replica sent nothing for {seconds:g} s."
        if self._done is not None and not self._done.done() and not self._has_answered:
            self._done.set_exception(Refusal(HTTPStatus.GATEWAY_TIMEOUT, "replica_timeout", text))
        self._fail(text)
        self.abort()

    def pause(self) -> None:
        """Stop reading: the client is slower than the replica."""
        if self.is_open and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        self.last_byte_at = time.monotonic()
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has a class of its own
        keep_alive(self._transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        if self._ends_with_connection and exc is None:
            self._finish()
        else:
            self._fail(str(exc) if exc else "the replica closed the connection")

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._parser is None:
            self.abort()  # nothing was asked for
            return
        self.last_byte_at = time.monotonic()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the replica does not speak HTTP: {error}")
            self.abort()
            return
        self._pass_on()

    # httptools

    def on_status(self, status: bytes) -> None:
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None  # noqa: S101 - for the type checker
        status = self._parser.get_status_code()
        self._is_final = status >= _OK or status == _SWITCHING
        if not self._is_final or self._receiver is None:
            self._headers, self._reason = [], b""
            return
        names = {name.lower() for name, _ in self._headers}
        has_length = b"content-length" in names or _has_no_body(status)
        self._ends_with_connection = not has_length and b"transfer-encoding" not in names
        self._receiver.begin(status, self._reason, self._headers, has_length=has_length)
        self._has_answered = True
        if self._without_body:
            self.abort()
            self._finish()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._is_final and self._done is not None:
            self._pass_on()
            if not (self._parser is not None and self._parser.should_keep_alive()):
                self.abort()
            self._finish()

    def _pass_on(self) -> None:
        if self._body and self._receiver is not None:
            parts, self._body = self._body, []
            self._receiver.write(parts)

    def _finish(self) -> None:
        done, self._done, self._receiver = self._done, None, None
        self.idle_since = time.monotonic()
        if done is not None and not done.done():
            done.set_result(None)

    def _fail(self, why: str) -> None:
        done, self._done, self._receiver = self._done, None, None
        if done is not None and not done.done():
            reused = self.used > 1
            done.set_exception(ReplicaFailed(why, before_answer=not self._has_answered, was_sent=True, reused=reused))


def keep_alive(transport: asyncio.Transport) -> None:
    """Notice within half a minute that the other machine has gone."""
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _has_no_body(status: int) -> bool:
    return status in (204, 304)


class UpstreamPool:
    """Idle connections by replica address."""

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._tls = tls
        self._idle: dict[tuple[str, str], list[UpstreamConnection]] = defaultdict(list)

    async def connection(self, route: ReplicaRoute, *, fresh: bool = False) -> UpstreamConnection:
        """Take an idle connection, or open one within a second."""
        idle = self._idle.get((route.address, route.server_name))
        while idle and not fresh:
            connection = idle.pop()
            if connection.is_open:
                return connection
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._open(route)
        except (OSError, TimeoutError) as error:
            why = str(error) or "it did not accept the connection in time"
            raise ReplicaFailed(f"{route.address}: {why}", before_answer=True) from error

    def keep(self, route: ReplicaRoute, connection: UpstreamConnection) -> None:
        idle = self._idle[route.address, route.server_name]
        if connection.is_open and len(idle) < _IDLE_PER_REPLICA:
            idle.append(connection)
        else:
            connection.abort()

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        oldest = time.monotonic() - IDLE_S
        for address, idle in list(self._idle.items()):
            for connection in idle:
                if connection.idle_since < oldest:
                    connection.abort()
            self._idle[address] = [each for each in idle if each.is_open]
            if not self._idle[address]:
                del self._idle[address]

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()

    async def _open(self, route: ReplicaRoute) -> UpstreamConnection:
        host, _, port = route.address.rpartition(":")
        context, name = (self._context(), route.server_name) if route.server_name else (None, None)
        loop = asyncio.get_running_loop()
        _, opened = await loop.create_connection(
            UpstreamConnection, host.strip("[]"), int(port), ssl=context, server_hostname=name
        )
        return opened

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            raise OSError("this gateway has no certificate for forwarders")
        return self._tls()
