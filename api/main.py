"""The api process: settings, parts, then uvicorn in the same loop."""

import asyncio
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
import uvicorn
import uvloop

from api.app import create_app
from api.composition import compose
from api.parts import Parts
from domain.errors import InvalidRequest, NodesmithError
from runtime import logs, process
from runtime.settings import ControlSettings

log = structlog.stdlib.get_logger(__name__)

KEEP_ALIVE_S = 75
"""longer than clients and proxies keep a connection: who closes it while the other sends loses a request"""
GRACE_S = 5
AUTO_APPROVE = "NODESMITH_AUTO_APPROVE is on: whoever has the registration token takes part, unseen."


class ApiServer(uvicorn.Server):
    """Uvicorn without signal handlers of its own; it ends the event streams before it waits for open requests."""

    def __init__(
        self,
        parts: Parts,
        listening: socket.socket,
        encrypted: "Encrypted | None" = None,
        *,
        trusted_proxies: str = "127.0.0.1",
    ) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(parts),
                log_config=None,
                access_log=False,
                lifespan="on",
                timeout_graceful_shutdown=GRACE_S,
                timeout_keep_alive=KEEP_ALIVE_S,
                forwarded_allow_ips=trusted_proxies,
            )
        )
        self._events = parts.events
        self._socket = listening
        self._encrypted = encrypted

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Uvicorn knows one kind of socket; the one with TLS serves the same application beside it."""
        await super().startup(sockets)
        if self._encrypted is not None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(self._protocol, sock=self._encrypted.socket, ssl=self._encrypted.context)
            self.servers.append(server)

    def _protocol(self) -> asyncio.Protocol:
        protocol: type[Any] = self.config.http_protocol_class
        made: asyncio.Protocol = protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then let open requests finish."""
        serving = asyncio.create_task(self.serve(sockets=[self._socket]))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        self.should_exit = True
        await serving

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._events.close()
        await super().shutdown(sockets)


async def serve(settings: ControlSettings, stop: asyncio.Event) -> int:
    """Listen at once, whatever server is missing; /readyz says which."""
    async with AsyncExitStack() as closing:
        try:
            listening = closing.enter_context(bind(settings.api_host, settings.api_port))
            encrypted = bind_encrypted(settings, closing)
            parts = await compose(settings, closing)
        except (NodesmithError, OSError) as error:
            sys.stderr.write(f"nodesmith api cannot start: {error}\n")
            return 1
        log.info("api.listening", host=settings.api_host, port=settings.api_port, also=settings.listen_host)
        if settings.auto_approve:
            log.warning("api.auto_approve", meaning=AUTO_APPROVE)
        server = ApiServer(parts, listening, encrypted, trusted_proxies=settings.trusted_proxies)
        await server.run_until(stop)
    return 0


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything else is opened."""
    listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    # asyncio sets it only on sockets that say they are TCP, and these do not: every answer waited 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


@dataclass(frozen=True)
class Encrypted:
    """Where the API listens for other machines."""

    socket: socket.socket
    context: ssl.SSLContext


def bind_encrypted(settings: ControlSettings, closing: AsyncExitStack) -> Encrypted | None:
    if not settings.listen_host:
        return None
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        raise InvalidRequest("NODESMITH_LISTEN_HOST needs NODESMITH_TLS_CERT_FILE and NODESMITH_TLS_KEY_FILE.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    return Encrypted(closing.enter_context(bind(settings.listen_host, settings.api_port)), context)


def main() -> None:
    settings = ControlSettings()
    logs.configure(settings.log_level)
    process.run(lambda stop: serve(settings, stop), loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
