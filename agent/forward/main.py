"""The forwarder's process: `python -m nodesmith.agent.forward.main`. It outlives the agent that started it."""

import asyncio
import ssl
from pathlib import Path

import structlog
import uvloop
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from nodesmith.agent.forward.control import SOCKET, ControlServer
from nodesmith.agent.forward.routes import ForwardRoutes
from nodesmith.agent.forward.server import Forwarder, server_context
from nodesmith.runtime import log_setup, process_exit

log = structlog.stdlib.get_logger(__name__)

GRACE_S = 30.0
_POLL_S = 0.1


class ForwarderSettings(BaseSettings):
    """Given by the agent that starts it."""

    model_config = SettingsConfigDict(env_prefix="NODESMITH_FORWARD_", extra="ignore")

    node_id: str
    folder: Path
    """routes and control socket"""
    host: str = "127.0.0.1"
    """address on which gateways reach this node"""
    port: int = Field(default=23000, ge=0, lt=65536)
    cert_file: Path
    key_file: Path
    ca_file: Path
    """CA of the gateways"""
    log_level: str = "INFO"


async def serve(settings: ForwarderSettings, stop: asyncio.Event) -> int:
    """Forward until `stop`, then let open connections finish."""
    forwarder = Forwarder(ForwardRoutes(settings.folder / "routes.json", settings.node_id))
    context = server_context()
    load(context, settings)
    listening = await forwarder.listen(settings.host, settings.port, context)
    control = await ControlServer(forwarder, lambda: load(context, settings)).listen(settings.folder / SOCKET)
    log.info("forward.listening", host=settings.host, port=listening.sockets[0].getsockname()[1])
    await stop.wait()
    listening.close()
    deadline = asyncio.get_running_loop().time() + GRACE_S
    while forwarder.total and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    control.close()
    return 0


def load(context: ssl.SSLContext, settings: ForwarderSettings) -> None:
    """Read the certificate and the CA; also while connections are accepted, after a renewal."""
    context.load_cert_chain(settings.cert_file, settings.key_file)
    context.load_verify_locations(cafile=str(settings.ca_file))


def main() -> None:
    settings = ForwarderSettings()
    log_setup.configure(settings.log_level)
    process_exit.run(lambda stop: serve(settings, stop), loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
