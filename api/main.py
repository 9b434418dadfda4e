"""The api process: settings, parts, then uvicorn in the same loop."""

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import structlog
import uvicorn

from api.app import create_app
from api.composition import compose
from api.parts import Parts
from domain.errors import NodesmithError
from runtime import logs, process
from runtime.settings import ControlSettings

log = structlog.stdlib.get_logger(__name__)

GRACE_S = 5


class ApiServer(uvicorn.Server):
    """Uvicorn without signal handlers of its own; it ends the event streams before it waits for open requests."""

    def __init__(self, parts: Parts, listening: socket.socket) -> None:
        app = create_app(parts)
        super().__init__(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=GRACE_S)
        )
        self._events = parts.events
        self._socket = listening

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

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
            parts = await compose(settings, closing)
        except (NodesmithError, OSError) as error:
            sys.stderr.write(f"nodesmith api cannot start: {error}\n")
            return 1
        log.info("api.listening", host=settings.api_host, port=settings.api_port)
        await ApiServer(parts, listening).run_until(stop)
    return 0


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything else is opened."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def main() -> None:
    settings = ControlSettings()
    logs.configure(settings.log_level)
    process.run(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
