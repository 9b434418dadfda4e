"""From settings to parts: connections and adapters. What is not there yet is tried for as long as the process lives."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import Client
from temporalio.service import RPCError

from api.failures import FailedSignIns
from api.galleries import compose_galleries
from api.health import FLEET_MONITOR, TEMPORAL, Check, Health
from api.heartbeats import HttpHeartbeats
from api.parts import Parts
from api.revocation import compose_revocation
from api.stream import EventHub
from bus.commands import NodeClient
from bus.connection import Bus, connect_control
from bus.credentials import CredentialIssuer
from bus.models import ModelsClient
from bus.presence import Presence
from bus.reports import ReportHub
from contracts.temporal import CONTROL_QUEUE
from domain.errors import InvalidRequest, NodesmithError, ServiceUnavailable
from gallery.builtin import BuiltinGallery
from gallery.catalogue import Catalogue
from gallery.tags import RegistryTags
from runtime.monitor import MonitorRun
from runtime.settings import ControlSettings
from runtime.temporal import TemporalRuns, connect, prepare_namespace, run_url
from runtime.trust import fingerprint, trusting
from services.access import Access
from services.admission import Admission
from services.batches import BatchDesk
from services.bulk import Bulk
from services.cancellation import Cancellation
from services.gate import Gate
from services.holding import Holding
from services.intents import Intents, UriRules
from services.inventory import Inventory
from services.invites import Door, Invites
from services.lifecycle import Lifecycle
from services.models import NodeModels
from services.monitoring import check_monitor, longest_silence
from services.registration import Registration
from services.stopping import Stopping
from services.witness import Witness
from store.audit import AuditTrail
from store.batches import Batches
from store.clock import utc_now
from store.database import Database
from store.events import EventFeed
from store.history import History
from store.holds import Holds
from store.idempotency import IdempotencyKeys
from store.inventory import InventoryTable
from store.invites import Invites as InviteTable
from store.labels import Labels
from store.life import NodeLife
from store.monitor import MonitorTicks
from store.node_list import NodeList
from store.nodes import Nodes
from store.operations import OperationTable
from store.overrides import Overrides
from store.sign_in import SignIn
from store.sources import SourceTable
from store.tokens import Tokens
from store.voices import Voices

log = structlog.stdlib.get_logger(__name__)

TRY_AGAIN_S = 0.5
POSTGRESQL = "postgresql"
MONITOR_AWAY = (
    "The fleet monitor does not run or has not completed a tick lately: operations that were ended in Temporal from"
    " outside are not repaired. A worker starts it again."
)


@dataclass(frozen=True)
class _Secrets:
    """Without these nothing is safe, so there is no default for them; read before anything is opened."""

    account_seed: str
    admin_token: str
    registration_token: str

    @classmethod
    def read(cls, settings: ControlSettings) -> "_Secrets":
        return cls(
            account_seed=_secret("NATS_ACCOUNT_SEED_FILE", settings.nats_account_seed_file),
            admin_token=_secret("ADMIN_TOKEN_FILE", settings.admin_token_file),
            registration_token=_secret("REGISTRATION_TOKEN_FILE", settings.registration_token_file),
        )


def _secret(name: str, path: Path | None) -> str:
    secret = path.read_text().strip() if path else ""
    if not secret:
        raise InvalidRequest(f"NODESMITH_{name} has to name a file with a secret in it.")
    return secret


async def compose(settings: ControlSettings, closing: AsyncExitStack, *, queue: str = CONTROL_QUEUE) -> Parts:
    """Every part; returns at once, whatever server is missing. `closing` closes in reverse."""
    secrets = _Secrets.read(settings)
    issuer = CredentialIssuer(secrets.account_seed)
    database = Database(settings.database_url, settings.secret(settings.database_password_file))
    closing.push_async_callback(database.close)
    bus = await connect_control(settings.nats_url, issuer, name="api", patience=0, tls=trusting(settings.ca_file))
    closing.push_async_callback(bus.close)
    temporal = await connect(settings, lazy=True)
    runs = TemporalRuns(temporal, queue=queue)
    preparing = {
        POSTGRESQL: asyncio.create_task(_until_done(database.migrate)),
        TEMPORAL: asyncio.create_task(_until_done(partial(prepare_namespace, temporal))),
    }
    closing.push_async_callback(_cancel, *preparing.values())
    gallery = BuiltinGallery(settings.gallery_folder)
    catalogue = await asyncio.to_thread(gallery.catalogue)
    reports, events, nodes, operations = _adapters(bus, database)
    invites = _invites(settings, database)
    revocation = compose_revocation(settings, database, secrets.account_seed, closing)
    await reports.start()
    admission = _admission(settings, database, runs, catalogue)
    link = Witness(NodeClient(bus, reports), nodes, utc_now)
    closing.push_async_callback(link.close)
    return Parts(
        nodes=nodes,
        node_list=NodeList(database),
        labels=Labels(database),
        overrides=Overrides(database),
        inventory=Inventory(InventoryTable(database), link, utc_now),
        operations=operations,
        history=History(database),
        admission=admission,
        registration=_registration(
            settings, database, bus, issuer=issuer, token=secrets.registration_token, invites=invites
        ),
        invites=invites,
        lifecycle=Lifecycle(nodes, NodeLife(database), runs, Presence(bus), utc_now, revocation),
        cancellation=Cancellation(nodes, operations, runs),
        bulk=Bulk(History(database), Cancellation(nodes, operations, runs)),
        stopping=Stopping(Presence(bus)),
        models=NodeModels(ModelsClient(bus), Presence(bus), utc_now),
        batches=Batches(database),
        desk=_desk(settings, database, runs, catalogue),
        holding=Holding(Holds(database), operations, runs, utc_now),
        sign_in=SignIn(database),
        access=Access(Tokens(database), SignIn(database), secrets.admin_token, utc_now),
        audit=AuditTrail(database),
        failures=FailedSignIns(settings.sign_in_failures),
        catalogue=catalogue,
        gallery=compose_galleries(settings, database, catalogue, gallery.folder, admission),
        artifacts=gallery.folder,
        link=link,
        events=events,
        heartbeats=HttpHeartbeats(nodes),
        health=Health(_checks(database, bus, runs, preparing) | _monitor_check(settings, temporal, database)),
        run_url=_run_links(settings),
        temporal_ui_url=settings.temporal_ui_url,
    )


def _adapters(bus: Bus, database: Database) -> tuple[ReportHub, EventHub, Nodes, OperationTable]:
    reports, events = ReportHub(bus), EventHub(EventFeed(database))
    reports.on_progress(events.tick)
    return reports, events, Nodes(database), OperationTable(database)


def _admission(settings: ControlSettings, database: Database, runs: TemporalRuns, catalogue: Catalogue) -> Admission:
    operations = OperationTable(database)
    return Admission(
        nodes=Nodes(database),
        inventory=InventoryTable(database),
        operations=operations,
        gate=Gate(operations, runs),
        intents=_intents(settings, database, catalogue),
        keys=IdempotencyKeys(database),
        policy=settings.policy,
        clock=utc_now,
    )


def _intents(settings: ControlSettings, database: Database, catalogue: Catalogue) -> Intents:
    sources = SourceTable(database, settings.secret(settings.sources_key_file))
    return Intents(
        catalogue,
        UriRules(settings.uri_schemes, without_digest=settings.uri_without_digest),
        RegistryTags(sources.access, timeout=settings.registry_timeout.total_seconds()),
    )


def _desk(settings: ControlSettings, database: Database, runs: TemporalRuns, catalogue: Catalogue) -> BatchDesk:
    return BatchDesk(
        nodes=Nodes(database),
        inventory=InventoryTable(database),
        batches=Batches(database),
        runs=runs,
        intents=_intents(settings, database, catalogue),
        keys=IdempotencyKeys(database),
        policy=settings.policy,
        clock=utc_now,
    )


def _invites(settings: ControlSettings, database: Database) -> Invites:
    ca = settings.ca_file.read_text() if settings.ca_file else ""
    url = settings.public_url or f"http://{settings.api_host}:{settings.api_port}"
    door = Door(url, ca, fingerprint(ca) if ca else "")
    return Invites(InviteTable(database), Labels(database), AuditTrail(database), door, utc_now)


def _registration(
    settings: ControlSettings,
    database: Database,
    bus: Bus,
    *,
    issuer: CredentialIssuer,
    token: str,
    invites: Invites,
) -> Registration:
    return Registration(
        nodes=Nodes(database),
        claims=NodeLife(database),
        presence=Presence(bus),
        invites=invites,
        trail=AuditTrail(database),
        issuer=issuer,
        voices=Voices(database),
        registration_token=token,
        nats_url=settings.nats_public_url or settings.nats_url,
        credential_lifetime=settings.nats_credential_lifetime,
        auto_approve=settings.auto_approve,
        clock=utc_now,
    )


def _run_links(settings: ControlSettings) -> Callable[[str, str], str]:
    if not settings.temporal_ui_url:
        return lambda _workflow_id, _run_id: ""
    return partial(run_url, settings.temporal_ui_url, settings.temporal_namespace)


async def _until_done(prepare: Callable[[], Awaitable[None]]) -> None:
    """Migrate, or register search attributes, as soon as the server is there."""
    while True:
        try:
            return await prepare()
        except (NodesmithError, SQLAlchemyError, RPCError, RuntimeError) as error:
            log.info("server.not_prepared", error=str(error))
            await asyncio.sleep(TRY_AGAIN_S)


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    """Until they are over: a driver in the middle of connecting may swallow a cancel."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=TRY_AGAIN_S)


def _checks(
    database: Database, bus: Bus, runs: TemporalRuns, preparing: Mapping[str, "asyncio.Task[None]"]
) -> dict[str, Check]:
    async def ask_nats() -> None:
        if not bus.is_up:
            raise ServiceUnavailable("NATS does not answer.")

    def prepared(name: str, ping: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def ask() -> None:
            await ping()
            if not preparing[name].done():
                raise ServiceUnavailable(f"{name} is not prepared yet.")

        return ask

    return {
        POSTGRESQL: Check(
            prepared(POSTGRESQL, database.ping), "PostgreSQL does not answer: nothing can be read or accepted."
        ),
        "nats": Check(ask_nats, "NATS does not answer: operations wait for their nodes."),
        TEMPORAL: Check(
            prepared(TEMPORAL, runs.ping), "Temporal does not answer: no operation can be started or cancelled."
        ),
    }


def _monitor_check(settings: ControlSettings, temporal: Client, database: Database) -> dict[str, Check]:
    silence = longest_silence(settings.monitor_silence, settings.fleet_tick)
    ask = partial(check_monitor, MonitorTicks(database), MonitorRun(temporal), silence)
    return {FLEET_MONITOR: Check(ask, MONITOR_AWAY, is_needed=False)}
