"""The agent's process: `python -m agent.main`."""

import asyncio
from typing import NoReturn

import structlog

from agent.join import joined_settings
from agent.node import Agent
from agent.settings import AgentSettings
from runtime import logs, process
from runtime.proxies import api_client
from runtime.trust import trusting

log = structlog.stdlib.get_logger(__name__)


def main() -> NoReturn:
    settings = joined_settings()
    logs.configure(settings.log_level)
    process.run(lambda stop: run(settings, stop))


async def run(settings: AgentSettings, stop: asyncio.Event) -> int:
    async with api_client(settings.url, verify=trusting(settings.ca_file)) as http:
        await Agent(settings, http).run(stop)
    log.info("agent.left", name=settings.name)
    return 0


if __name__ == "__main__":
    main()
