"""Limits on what an unauthenticated client may use: bytes, time and connections.

Uvicorn with httptools has none. It parses endless headers again with each chunk, it keeps a connection with half a
header or an unfinished body open for ever, and it queues any number of pipelined requests.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nodesmith.runtime.client_addresses import proxies
from nodesmith.runtime.connection_limits import ConnectionLimits, OpenConnections

log = structlog.stdlib.get_logger(__name__)

KEEP_ALIVE_S = 75
"""longer than the keep-alive of clients and proxies: the side that closes first may lose a request in flight"""
_TICKS_A_SECOND = 10
_PART = 16 * 1024
"""bytes that are parsed between two checks of the limits"""


class LimitedHttp(HttpToolsProtocol):
    """Uvicorn's protocol with limits. The server calls `expire` once a second."""

    def __init__(
        self, *args: Any, opened: OpenConnections, clock: Callable[[], float] = time.monotonic, **rest: Any
    ) -> None:
        super().__init__(*args, **rest)
        self._opened = opened
        self._limits = opened.limits
        self._clock = clock
        self._address = ""
        self._bare_bytes = 0
        """bytes received since the last byte of body, or since the end of a request"""
        self._head_since: float | None = None
        """None: no headers are awaited"""
        self._body_until: float | None = None
        """None: no body is awaited"""
        self._stuck_since: float | None = None
        """None: the client reads what is sent"""
        self._refusal = HTTPStatus.BAD_REQUEST

    # the connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._head_since = self._clock()
        if not self._opened.acquire(self._address):
            log.warning("connection.too_many", address=self._address)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.release(self._address)
        super().connection_lost(exc)

    def expire(self) -> None:
        """Disconnect a client that exceeded a time limit."""
        now = self._clock()
        if self.flow.read_paused and self._body_until is not None:
            self._body_until = now + self._limits.body_s  # reading is paused on our side: give the client more time
        if self._head_since is not None and now - self._head_since > self._limits.head_s:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The headers did not arrive in time.")
        elif self._body_until is not None and now > self._body_until:
            self._time_out_body()
        elif self._stuck_since is not None and now - self._stuck_since > self._limits.stuck_s:
            self.transport.abort()

    def pause_writing(self) -> None:
        self._stuck_since = self._clock()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stuck_since = None
        super().resume_writing()

    # the request

    def data_received(self, data: bytes) -> None:
        if self._head_since is None and self._body_until is None:
            self._head_since = self._clock()
        for start in range(0, len(data), _PART):
            part = data[start : start + _PART]
            self._bare_bytes += len(part)
            super().data_received(part)
            if self.transport.is_closing():
                return
            if self._bare_bytes > self._limits.head_bytes:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The headers are too large.")
                return

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("too many headers")  # stops the parser; uvicorn then responds

    def on_message_begin(self) -> None:
        self._bare_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_since = None
        self._body_until = self._clock() + self._limits.body_s
        if len(self.pipeline) >= self._limits.pipelined:
            self._refusal = HTTPStatus.TOO_MANY_REQUESTS
            raise ValueError("too many requests at once")  # stops the parser; uvicorn then responds
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        if self._body_until is not None:
            self._body_until += len(body) / self._limits.body_rate
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bare_bytes = 0
        self._body_until = None
        super().on_message_complete()

    # refusals

    def send_400_response(self, msg: str) -> None:
        """Uvicorn calls this when the parser fails."""
        self._refuse(self._refusal, msg)

    def _time_out_body(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The body did not arrive in time.")
        self.cycle.disconnected = True  # the route that reads the body gets a disconnect and sends nothing
        self.cycle.message_event.set()

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        """Respond without the application, and close; if another response is in progress, only close."""
        self._head_since = self._body_until = None
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()
        if self.transport.is_closing():
            return
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(words)}\r\ncache-control: no-store\r\nretry-after: 5\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(f"{head}{words}".encode("ascii"))
        self.transport.close()


class LimitedServer(uvicorn.Server):
    """Uvicorn with these limits, without its own signal handlers and without an access log."""

    def __init__(
        self, app: ASGIApp, *, limits: ConnectionLimits | None = None, trusted_proxies: str = "", **options: Any
    ) -> None:
        opened = OpenConnections(limits or ConnectionLimits(), proxies(trusted_proxies))
        protocol: Any = partial(LimitedHttp, opened=opened)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                proxy_headers=bool(trusted_proxies),
                forwarded_allow_ips=trusted_proxies,
                **options,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        if counter % _TICKS_A_SECOND == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, LimitedHttp):
                    connection.expire()
        return await super().on_tick(counter)
