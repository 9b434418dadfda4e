"""The API process: settings, dependencies, then uvicorn in the same event loop."""

import asyncio
import socket
import sys
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import structlog
import uvloop
from starlette.types import ASGIApp

from nodesmith.api.app import create_app
from nodesmith.api.assembly import compose
from nodesmith.api.connections import LimitedServer
from nodesmith.api.dependencies import Dependencies
from nodesmith.api.temporal_ui import allowed_hosts, create_web_ui
from nodesmith.domain.errors import ForeignRoot, NodesmithError
from nodesmith.runtime import log_setup, process_exit
from nodesmith.runtime.connection_limits import ConnectionLimits
from nodesmith.runtime.listening import HANDSHAKE_S, Encrypted, bind, bind_encrypted
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.tls_trust import trusting

log = structlog.stdlib.get_logger(__name__)

GRACE_S = 5
WEB_UI_PATIENCE_S = 75.0
LOCALAI_WORKERS = "NODESMITH_LOCALAI_WORKERS is on: LocalAI workers verify no orders and sign no reports."
AUTO_APPROVE = "NODESMITH_AUTO_APPROVE is on: every machine with the registration token joins without approval."


class ApiServer(LimitedServer):
    """Serves with and without TLS; on shutdown it ends the event streams before it waits for open requests."""

    def __init__(
        self,
        deps: Dependencies,
        listening: socket.socket,
        encrypted: Encrypted | None = None,
        *,
        trusted_proxies: str = "",
        limits: ConnectionLimits | None = None,
        app: ASGIApp | None = None,
    ) -> None:
        super().__init__(
            app or create_app(deps),
            limits=limits,
            trusted_proxies=trusted_proxies,
            lifespan="on",
            timeout_graceful_shutdown=GRACE_S,
        )
        self._events = deps.events
        self._socket = listening
        self._encrypted = encrypted

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start uvicorn, then serve the same application on the TLS socket: uvicorn supports one kind of socket."""
        await super().startup(sockets)
        if self._encrypted is not None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(
                self._protocol,
                sock=self._encrypted.socket,
                ssl=self._encrypted.context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
            self.servers.append(server)

    def _protocol(self) -> asyncio.Protocol:
        protocol: type[Any] = self.config.http_protocol_class
        made: asyncio.Protocol = protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let open requests finish."""
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
    """Listen immediately, even if a server is missing; /readyz says which."""
    async with AsyncExitStack() as closing:
        try:
            listening = closing.enter_context(bind(settings.api_host, settings.api_port))
            encrypted = _encrypted(settings, settings.api_port, closing)
            deps = await compose(settings, closing)
            server = _server(settings, deps, listening, encrypted)
            web_ui = await web_ui_server(settings, deps, closing)
        except (NodesmithError, OSError) as error:
            sys.stderr.write(f"nodesmith api cannot start: {error}\n")
            return 1
        log.info("api.listening", host=settings.api_host, port=settings.api_port, also=settings.listen_host)
        if settings.auto_approve:
            log.warning("api.auto_approve", meaning=AUTO_APPROVE)
        if settings.localai_workers:
            log.warning("api.localai_workers", meaning=LOCALAI_WORKERS)
        refusing = asyncio.create_task(_stop_if_refused(deps, stop))
        async with asyncio.TaskGroup() as serving:
            serving.create_task(server.run_until(stop))
            if web_ui is not None:
                serving.create_task(web_ui.run_until(stop))
        refusing.cancel()
        return 1 if refusing.done() and not refusing.cancelled() and refusing.result() else 0


async def _stop_if_refused(deps: Dependencies, stop: asyncio.Event) -> bool:
    """Stop if PostgreSQL, which may start later, has another root key for this installation."""
    try:
        await asyncio.shield(deps.prepared)
    except ForeignRoot as error:
        sys.stderr.write(f"nodesmith api cannot start: {error.message}\n")
        stop.set()
        return True
    return False


def _server(
    settings: ControlSettings,
    deps: Dependencies,
    listening: socket.socket,
    encrypted: Encrypted | None,
    app: ASGIApp | None = None,
) -> ApiServer:
    limits = ConnectionLimits(total=settings.max_connections, per_address=settings.max_connections_per_address)
    return ApiServer(deps, listening, encrypted, trusted_proxies=settings.trusted_proxies, limits=limits, app=app)


async def web_ui_server(settings: ControlSettings, deps: Dependencies, closing: AsyncExitStack) -> ApiServer | None:
    """The Temporal Web UI behind our sign-in, on its own port; None if it is not served."""
    if not settings.temporal_ui_server:
        return None
    listening = closing.enter_context(bind(settings.api_host, settings.temporal_ui_port))
    encrypted = _encrypted(settings, settings.temporal_ui_port, closing)
    client = await closing.enter_async_context(web_ui_client(settings))
    hosts = allowed_hosts(settings.temporal_ui_url, listening.getsockname()[1], settings.listen_host)
    return _server(settings, deps, listening, encrypted, app=create_web_ui(deps, client, hosts))


def web_ui_client(settings: ControlSettings) -> httpx2.AsyncClient:
    """HTTP client with a long read time-out: the Web UI's pages long-poll for the next event for a minute."""
    context = trusting(settings.temporal_ca_file)
    if settings.temporal_cert_file is not None:
        context.load_cert_chain(settings.temporal_cert_file, settings.temporal_key_file)
    timeout = httpx2.Timeout(WEB_UI_PATIENCE_S, connect=5)
    return httpx2.AsyncClient(base_url=settings.temporal_ui_server, verify=context, timeout=timeout, trust_env=False)


def _encrypted(settings: ControlSettings, port: int, closing: AsyncExitStack) -> Encrypted | None:
    cert, key = settings.tls_cert_file, settings.tls_key_file
    return bind_encrypted(settings.listen_host, port, cert_file=cert, key_file=key, closing=closing)


def main() -> None:
    settings = ControlSettings()
    log_setup.configure(settings.log_level)
    process_exit.run(lambda stop: serve(settings, stop), loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
