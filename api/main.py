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

    def __init__(self, parts: Parts, *, host: str = "127.0.0.1", port: int = 0) -> None:
        app = create_app(parts)
        super().__init__(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=GRACE_S)
        )
        self._events = parts.events
        self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)

    @property
    def port(self) -> int:
        number: int = self._socket.getsockname()[1]
        return number

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
            parts = await compose(settings, closing)
            server = ApiServer(parts, host=settings.api_host, port=settings.api_port)
        except (NodesmithError, OSError) as error:
            sys.stderr.write(f"nodesmith api cannot start: {error}\n")
            return 1
        log.info("api.listening", host=settings.api_host, port=server.port)
        await server.run_until(stop)
    return 0


def main() -> None:
    settings = ControlSettings()
    logs.configure(settings.log_level)
    process.run(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
