"""The connection of one client: parses requests, limits what it may use, and answers one request after the other."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import cast

import structlog

from nodesmith.gateway.answers import Refusal, refused
from nodesmith.gateway.bodies import Body, BodyStore
from nodesmith.gateway.request_parser import RequestParser
from nodesmith.gateway.requests import Request
from nodesmith.gateway.upstream import ReplicaFailed, UpstreamConnection, keep_alive
from nodesmith.runtime.connection_limits import ConnectionLimits, OpenConnections

log = structlog.stdlib.get_logger(__name__)

_HIGH_WATER = 256 * 1024
_CONTINUE = b"100-continue"
KEEP_ALIVE_S = 75.0
"""longer than the keep-alive of clients and proxies: the side that closes first may lose a request in flight"""

ANSWER_S = 600.0
"""a replica that sends nothing for this long is given up"""

Admit = Callable[[Request], "Coroutine[None, None, None] | None"]
"""checks who asks, before the body is read: None is yes, a coroutine ends with yes or raises a refusal"""
Serve = Callable[[Request, "ClientConnection"], Coroutine[None, None, bool]]
"""answers a complete request, and says whether the connection stays open"""


class ClientConnection(asyncio.Protocol):
    """`expire` is called once a second. Requests that arrive while one is served wait, unparsed."""

    def __init__(
        self,
        admit: Admit,
        serve: Serve,
        bodies: BodyStore,
        opened: OpenConnections,
        connections: "set[ClientConnection]",
        *,
        answer_s: float = ANSWER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admit = admit
        self._serve = serve
        self._bodies = bodies
        self._opened = opened
        self._connections = connections
        self._answer_s = answer_s
        self._limits: ConnectionLimits = opened.limits
        self._clock = clock
        self._parser = RequestParser(self, opened.limits, lambda: Body(bodies))
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._ready: deque[Request] = deque()
        """complete, waiting for the one that is served"""
        self._unread = bytearray()
        """received while a request is served"""
        self._serving: asyncio.Task[None] | None = None
        self._admission: asyncio.Task[None] | None = None
        self._upstream: UpstreamConnection | None = None
        self._head_since: float | None = None
        self._body_until: float | None = None
        self._stuck_since: float | None = None
        self._idle_since: float | None = None
        self._is_stopping = False

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has a class of its own
        self._connections.add(self)
        keep_alive(self._transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if peer else ""
        self._head_since = self._clock()
        if not self._opened.acquire(self._address):
            log.warning("connection.too_many", address=self._address)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too_many_connections", "Too many connections.")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why does not matter
        """Cancel everything that was done for this client."""
        self._opened.release(self._address)
        self._connections.discard(self)
        self._transport = None
        for task in (self._serving, self._admission):
            if task is not None:
                task.cancel()
        for request in (*self._ready, self._parser.request):
            if request is not None:
                request.body.close()
        self._ready.clear()

    @property
    def is_idle(self) -> bool:
        return self._serving is None and self._parser.request is None and not self._ready

    def stop(self) -> None:
        """Serve what has begun, and close then."""
        self._is_stopping = True
        if self.is_idle and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def expire(self) -> None:
        """Disconnect a client that exceeded a time limit."""
        now = self._clock()
        is_reading = self._serving is None and self._admission is None
        if is_reading and self._head_since is not None and now - self._head_since > self._limits.head_s:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "timeout", "The headers did not arrive in time.")
        elif is_reading and self._body_until is not None and now > self._body_until:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "timeout", "The body did not arrive in time.")
        elif self._stuck_since is not None:
            if now - self._stuck_since > self._limits.stuck_s:
                self.abort()
        elif self._upstream is not None and now - self._upstream.last_byte_at > self._answer_s:
            self._upstream.time_out(self._answer_s)
        elif self._idle_since is not None and now - self._idle_since > KEEP_ALIVE_S and self._transport is not None:
            self._transport.close()

    # what is sent to the client

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def attach(self, upstream: UpstreamConnection | None) -> None:
        self._upstream = upstream
        if upstream is not None and self._stuck_since is not None:
            upstream.pause()

    def pause_writing(self) -> None:
        self._stuck_since = self._clock()
        if self._upstream is not None:
            self._upstream.pause()

    def resume_writing(self) -> None:
        self._stuck_since = None
        if self._upstream is not None:
            self._upstream.resume()

    # what the client sends

    def data_received(self, data: bytes) -> None:
        if self._serving is not None:
            self._unread += data
            if len(self._unread) > self._limits.head_bytes and self._transport is not None:
                self._transport.pause_reading()
            return
        self._parse(data)

    def eof_received(self) -> bool:
        """A client that closes its side is taken as gone."""
        return False

    def _parse(self, data: bytes | bytearray) -> None:
        self._idle_since = None
        if self._head_since is None and self._body_until is None:
            self._head_since = self._clock()
        try:
            self._parser.feed(data)
        except Refusal as refusal:
            self._refuse_with(refusal)

    def head_received(self, request: Request) -> None:
        self._head_since = None
        self._body_until = self._clock() + self._limits.body_s
        if len(self._ready) >= self._limits.pipelined:
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "pipelined", "Too many requests at once.", retry_after_s=1)
        self._bodies.check_length(int(request.headers.get(b"content-length", b"0")))
        if self._admission is not None:
            return  # behind a request whose key is being checked: the rest of one read
        admission = self._admit(request)
        if admission is not None:
            self._wait_for_admission(request, admission)
        else:
            self._ask_for_body()

    def body_received(self, size: int) -> None:
        if self._body_until is not None:
            self._body_until += size / self._limits.body_rate

    def request_received(self, request: Request) -> None:
        self._body_until = None
        self._ready.append(request)
        self._serve_next()

    # admission before the body

    def _wait_for_admission(self, request: Request, admission: Coroutine[None, None, None]) -> None:
        """Read nothing more until the key is checked: strangers must not fill memory or disk."""
        if self._transport is not None:
            self._transport.pause_reading()
        self._admission = asyncio.get_running_loop().create_task(admission)
        self._admission.add_done_callback(lambda done: self._admitted(request, done))

    def _admitted(self, request: Request, admission: "asyncio.Task[None]") -> None:
        self._admission = None
        if admission.cancelled() or self._transport is None:
            return
        error = admission.exception()
        if isinstance(error, Refusal):
            self._drop_from(request)
            self._refuse_with(error)
        elif error is not None:
            log.error("admission.failed", exc_info=error)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "The gateway failed.")
        else:
            self._restart_clocks()
            self._ask_for_body()
            self._transport.resume_reading()
            self._serve_next()

    def _drop_from(self, request: Request) -> None:
        """Forget a complete request and those behind it."""
        while request in self._ready:
            self._ready.pop().body.close()

    def _ask_for_body(self) -> None:
        request = self._parser.request
        if request is not None and self._serving is None and request.headers.get(b"expect", b"").lower() == _CONTINUE:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _restart_clocks(self) -> None:
        """Give the client its whole time again: nothing was read from it meanwhile."""
        now = self._clock()
        self._head_since = now if self._head_since is not None else None
        self._body_until = now + self._limits.body_s if self._body_until is not None else None

    # one request after the other

    def _serve_next(self) -> None:
        if self._serving is None and self._admission is None and self._ready and self._transport is not None:
            self._idle_since = None
            self._serving = asyncio.get_running_loop().create_task(self._serve_one(self._ready.popleft()))

    async def _serve_one(self, request: Request) -> None:
        stays_open = False
        try:
            stays_open = await self._serve(request, self)
        except Refusal as refusal:
            stays_open = request.keep_alive
            self.write(refused(refusal, keep_alive=stays_open))
        except ReplicaFailed:
            self.abort()  # the client must see that its response is incomplete
        except Exception:
            log.exception("request.failed", path=request.path.decode("latin-1"))
            self.abort()
        finally:
            request.body.close()
            self._serving = None
        self._after_response(stays_open=stays_open)

    def _after_response(self, *, stays_open: bool) -> None:
        if self._transport is None:
            return
        if not stays_open or self._is_stopping:
            self._transport.close()
            return
        self._serve_next()
        if self._serving is None:
            self._restart_clocks()
            self._idle_since = self._clock() if self.is_idle else None
            self._parse_unread()

    def _parse_unread(self) -> None:
        unread, self._unread = self._unread, bytearray()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        if unread:
            self._parse(unread)

    # refusals

    def _refuse(self, status: HTTPStatus, code: str, text: str) -> None:
        self._refuse_with(Refusal(status, code, text))

    def _refuse_with(self, refusal: Refusal) -> None:
        """Answer and close; if a response is in progress, only close."""
        self._head_since = self._body_until = None
        if self._transport is None or self._transport.is_closing():
            return
        if self._serving is None and not self._ready:
            self._transport.write(refused(refusal, keep_alive=False))
        self._transport.close()
