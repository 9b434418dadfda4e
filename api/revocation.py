"""Revokes the NATS credential of a removed node, if the API has the operator's keys."""

import asyncio
import contextlib
from contextlib import AsyncExitStack

import structlog

from nodesmith.bus.nats_credentials import Trust
from nodesmith.bus.revocation import AccountLink
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.tls_trust import trusting
from nodesmith.services.nodes.revocation import Revocation
from nodesmith.store.clock import utc_now
from nodesmith.store.database import Database
from nodesmith.store.nodes.nats_credentials import NatsCredentials

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
            meaning="A removed node can publish on NATS until its credential expires.",
            remedy="Set NODESMITH_NATS_OPERATOR_SEED_FILE and NODESMITH_NATS_SYSTEM_SEED_FILE.",
        )
        return Revocation(NatsCredentials(database), None, utc_now)
    link = AccountLink(settings.nats_url, Trust(operator, account_seed, system), tls=trusting(settings.ca_file))
    link.start()
    closing.push_async_callback(link.close)
    revocation = Revocation(NatsCredentials(database), link, utc_now)
    closing.push_async_callback(_ended, asyncio.create_task(revocation.run()))
    return revocation


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
