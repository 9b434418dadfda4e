"""The part of the API that takes a removed node's voice away."""

import asyncio
import contextlib
from contextlib import AsyncExitStack

import structlog

from bus.credentials import Trust
from bus.revocation import AccountLink
from runtime.settings import ControlSettings
from runtime.trust import trusting
from services.revocation import Revocation
from store.clock import utc_now
from store.database import Database
from store.voices import Voices

log = structlog.stdlib.get_logger(__name__)


def compose_revocation(
    settings: ControlSettings, database: Database, account_seed: str, closing: AsyncExitStack
) -> Revocation:
    operator, system = (
        settings.secret(file) for file in (settings.nats_operator_seed_file, settings.nats_system_seed_file)
    )
    if not operator or not system:
        log.warning(
            "nats.no_revocation",
            meaning="A removed node keeps its voice on NATS until its credential ends by itself.",
            remedy="Set NODESMITH_NATS_OPERATOR_SEED_FILE and NODESMITH_NATS_SYSTEM_SEED_FILE.",
        )
        return Revocation(Voices(database), None, utc_now)
    link = AccountLink(settings.nats_url, Trust(operator, account_seed, system), tls=trusting(settings.ca_file))
    link.start()
    closing.push_async_callback(link.close)
    revocation = Revocation(Voices(database), link, utc_now)
    closing.push_async_callback(_ended, asyncio.create_task(revocation.keep()))
    return revocation


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
