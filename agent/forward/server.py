"""The forwarder's server: TLS from gateways on one side, the backend on loopback on the other, bytes in between."""

import asyncio
import ssl
from collections import Counter
from typing import Any, cast

import structlog

from nodesmith.agent.forward.routes import ForwardRoute, ForwardRoutes
from nodesmith.domain.forwarding import GATEWAY_NAME

log = structlog.stdlib.get_logger(__name__)

CONNECT_S = 1.0
HANDSHAKE_S = 5.0
MOST_CONNECTIONS = 10_000
_HIGH_WATER = 256 * 1024


def server_context() -> ssl.SSLContext:
    """Require a client certificate of the CA; the gateway's name in it is checked with each connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.sni_callback = _remember_name
    return context


def _remember_name(connection: Any, name: str | None, _context: ssl.SSLContext) -> int | None:
    """Keep the name that the gateway asked for; refuse a connection without one."""
    if not name:
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
    connection.wanted_name = name
    return None


class Forwarder:
    """Counts the connections of each replica."""

    def __init__(self, routes: ForwardRoutes) -> None:
        self.routes = routes
        self.open: Counter[str] = Counter()
        """connections by process key; a replica without one is idle"""
        self.total = 0

    async def listen(self, host: str, port: int, context: ssl.SSLContext) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: _GatewaySide(self), host, port, ssl=context, ssl_handshake_timeout=HANDSHAKE_S, backlog=1024
        )

    def admit(self, transport: asyncio.Transport) -> ForwardRoute | None:
        """The route of a new connection; None if it is refused."""
        connection = transport.get_extra_info("ssl_object")
        names = [value for kind, value in _alternative_names(connection) if kind == "DNS"]
        if GATEWAY_NAME not in names:
            log.warning("forward.not_a_gateway", names=names)
            return None
        route = self.routes.find(getattr(connection, "wanted_name", ""))
        if route is None or route.is_draining or self.total >= MOST_CONNECTIONS:
            return None
        return route

    def opened(self, key: str) -> None:
        self.total += 1
        self.open[key] += 1

    def closed(self, key: str) -> None:
        self.total -= 1
        self.open[key] -= 1
        if not self.open[key]:
            del self.open[key]


def _alternative_names(connection: Any) -> list[tuple[str, str]]:
    certificate = connection.getpeercert() if connection is not None else None
    return list((certificate or {}).get("subjectAltName", ()))


class _Side(asyncio.Protocol):
    """One side of a connection: passes what it receives on to the other side, no faster than that side reads."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop has a class of its own
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why does not matter
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()  # after what is still to be written

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()


class _GatewaySide(_Side):
    """Connects to the backend as soon as the gateway is admitted."""

    def __init__(self, forwarder: Forwarder) -> None:
        super().__init__()
        self._forwarder = forwarder
        self._route: ForwardRoute | None = None
        self._early: list[bytes] = []
        """received before the backend was connected"""
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None  # noqa: S101 - for the type checker
        self._route = self._forwarder.admit(self.transport)
        if self._route is None:
            self.transport.abort()
            return
        self._forwarder.opened(self._route.key)
        self._connecting = asyncio.get_running_loop().create_task(self._connect(self._route))

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
            if self.transport is not None:
                self.transport.pause_reading()
            return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._route is not None:
            self._forwarder.closed(self._route.key)
        super().connection_lost(exc)

    async def _connect(self, route: ForwardRoute) -> None:
        host, _, port = route.address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, backend = await asyncio.get_running_loop().create_connection(_Side, host.strip("[]"), int(port))
        except (OSError, TimeoutError) as error:
            log.warning("forward.backend_away", key=route.key, address=route.address, error=str(error))
            if self.transport is not None:
                self.transport.abort()
            return
        self.other, backend.other = backend, self
        if self._early and backend.transport is not None:
            backend.transport.write(b"".join(self._early))
            self._early.clear()
        if self.transport is not None:
            self.transport.resume_reading()
