"""From settings to parts: connections and adapters. What is not there yet is tried for as long as the process lives."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy.exc import SQLAlchemyError

from api.health import TEMPORAL, Check, Health
from api.heartbeats import HttpHeartbeats
from api.parts import Parts
from api.stream import EventHub
from bus.commands import NodeClient
from bus.connection import Bus, connect_control
from bus.credentials import CredentialIssuer
from bus.reports import ReportHub
from contracts.temporal import CONTROL_QUEUE
from domain.errors import InvalidRequest, NodesmithError, ServiceUnavailable
from gallery.builtin import BuiltinGallery
from gallery.catalogue import Catalogue
from runtime.settings import ControlSettings
from runtime.temporal import TemporalRuns, connect, run_url
from services.admission import Admission
from services.cancellation import Cancellation
from services.registration import Registration
from store.clock import utc_now
from store.database import Database
from store.events import EventFeed
from store.idempotency import IdempotencyKeys
from store.nodes import Nodes
from store.operations import OperationTable
from store.sign_in import SignIn

log = structlog.stdlib.get_logger(__name__)

MIGRATE_AGAIN_S = 0.5


async def compose(settings: ControlSettings, closing: AsyncExitStack, *, queue: str = CONTROL_QUEUE) -> Parts:
    """Every part; returns at once, whatever server is missing. `closing` closes in reverse."""
    issuer = CredentialIssuer(_secret("nats_account_seed_file", settings.nats_account_seed_file))
    database = Database(settings.database_url, settings.secret(settings.database_password_file))
    closing.push_async_callback(database.close)
    bus = await connect_control(settings.nats_url, issuer, name="api", patience=0)
    closing.push_async_callback(bus.close)
    runs = TemporalRuns(await connect(settings, lazy=True), queue=queue)
    migrated = asyncio.create_task(_migrate(database))
    closing.callback(migrated.cancel)
    gallery = BuiltinGallery(settings.gallery_folder)
    catalogue = await asyncio.to_thread(gallery.catalogue)
    reports, events, nodes, operations = _adapters(bus, database)
    await reports.start()
    return Parts(
        nodes=nodes,
        operations=operations,
        admission=_admission(settings, database, runs, catalogue),
        registration=_registration(settings, nodes, issuer),
        cancellation=Cancellation(nodes, operations, runs),
        sign_in=SignIn(database),
        catalogue=catalogue,
        artifacts=gallery.folder,
        link=NodeClient(bus, reports),
        events=events,
        heartbeats=HttpHeartbeats(nodes),
        health=Health(_checks(database, migrated, bus, runs)),
        admin_token=_secret("admin_token_file", settings.admin_token_file),
        run_url=_run_links(settings),
        temporal_ui_url=settings.temporal_ui_url,
    )


def _adapters(bus: Bus, database: Database) -> tuple[ReportHub, EventHub, Nodes, OperationTable]:
    reports, events = ReportHub(bus), EventHub(EventFeed(database))
    reports.on_progress(events.tick)
    return reports, events, Nodes(database), OperationTable(database)


def _admission(settings: ControlSettings, database: Database, runs: TemporalRuns, catalogue: Catalogue) -> Admission:
    return Admission(
        nodes=Nodes(database),
        operations=OperationTable(database),
        runs=runs,
        catalogue=catalogue,
        keys=IdempotencyKeys(database),
        policy=settings.policy,
        uri_schemes=settings.uri_schemes,
        clock=utc_now,
    )


def _registration(settings: ControlSettings, nodes: Nodes, issuer: CredentialIssuer) -> Registration:
    return Registration(
        nodes=nodes,
        issuer=issuer,
        registration_token=_secret("registration_token_file", settings.registration_token_file),
        nats_url=settings.nats_public_url or settings.nats_url,
        credential_lifetime=settings.nats_credential_lifetime,
        auto_approve=settings.auto_approve,
        clock=utc_now,
    )


def _run_links(settings: ControlSettings) -> Callable[[str, str], str]:
    if not settings.temporal_ui_url:
        return lambda _workflow_id, _run_id: ""
    return partial(run_url, settings.temporal_ui_url, settings.temporal_namespace)


def _secret(name: str, path: Path | None) -> str:
    """A secret without which nothing is safe: there is no default for it."""
    secret = path.read_text().strip() if path else ""
    if not secret:
        raise InvalidRequest(f"NODESMITH_{name.upper()} has to name a file with a secret in it.")
    return secret


async def _migrate(database: Database) -> None:
    """Bring the schema up to date as soon as PostgreSQL is there."""
    while True:
        try:
            return await database.migrate()
        except (NodesmithError, SQLAlchemyError) as error:
            log.warning("schema.not_migrated", error=str(error))
            await asyncio.sleep(MIGRATE_AGAIN_S)


def _checks(database: Database, migrated: "asyncio.Task[None]", bus: Bus, runs: TemporalRuns) -> dict[str, Check]:
    async def ask_postgresql() -> None:
        await database.ping()
        if not migrated.done():
            raise ServiceUnavailable("The schema is not migrated yet.")

    async def ask_nats() -> None:
        if not bus.is_up:
            raise ServiceUnavailable("NATS does not answer.")

    return {
        "postgresql": Check(ask_postgresql, "PostgreSQL does not answer: nothing can be read or accepted."),
        "nats": Check(ask_nats, "NATS does not answer: operations wait for their nodes."),
        TEMPORAL: Check(runs.ping, "Temporal does not answer: no operation can be started or cancelled."),
    }
