"""The agent's process: `python -m nodesmith.agent.main`."""

import asyncio
from typing import NoReturn

import structlog

from nodesmith.agent.link.join import joined_settings
from nodesmith.agent.node import Agent
from nodesmith.agent.settings import AgentSettings
from nodesmith.runtime import log_setup, process_exit
from nodesmith.runtime.proxies import api_client
from nodesmith.runtime.tls_trust import trusting

log = structlog.stdlib.get_logger(__name__)


def main() -> NoReturn:
    settings = joined_settings()
    log_setup.configure(settings.log_level)
    process_exit.run(lambda stop: run(settings, stop))


async def run(settings: AgentSettings, stop: asyncio.Event) -> int:
    async with api_client(settings.url, verify=trusting(settings.ca_file)) as http:
        await Agent(settings, http).run(stop)
    log.info("agent.left", name=settings.name)
    return 0


if __name__ == "__main__":
    main()
