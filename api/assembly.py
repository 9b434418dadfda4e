"""Build the dependencies from settings: connections, adapters. Missing servers are retried while the process runs."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy.exc import SQLAlchemyError
from temporalio.service import RPCError

from nodesmith.api.dependencies import Dependencies
from nodesmith.api.gallery_dependencies import compose_galleries
from nodesmith.api.health import TEMPORAL, Check, Health
from nodesmith.api.health_checks import GALLERIES, GALLERY_REFUSED, POSTGRESQL, monitor_check, server_checks
from nodesmith.api.heartbeats import HttpHeartbeats
from nodesmith.api.login_throttle import LoginFailures
from nodesmith.api.order_renewal import OrderRenewal
from nodesmith.api.revocation import compose_revocation
from nodesmith.api.stream import EventHub
from nodesmith.bus.commands import NodeClient
from nodesmith.bus.connection import Bus, connect_control
from nodesmith.bus.credentials import CredentialIssuer
from nodesmith.bus.presence import Presence
from nodesmith.bus.reports import ReportHub
from nodesmith.bus.running_models import ModelsClient
from nodesmith.contracts.temporal.operations import CONTROL_QUEUE
from nodesmith.domain.errors import ForeignRoot, InvalidRequest, NodesmithError
from nodesmith.gallery.builtin import BuiltinGallery
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.signatures import PublishedSignatures
from nodesmith.gallery.tags import RegistryTags
from nodesmith.runtime.keyring import Keyring
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import TemporalRuns, connect, prepare_namespace, run_url
from nodesmith.runtime.tls_trust import fingerprint, trusting
from nodesmith.services.access.callers import Access, KnownCredentials
from nodesmith.services.access.invites import Invites, JoinAddress
from nodesmith.services.access.trust_roots import RootGuard
from nodesmith.services.batches.batches import BatchService
from nodesmith.services.nodes.backend_stop import BackendStop
from nodesmith.services.nodes.inventory import Inventory
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.reachability import ReachabilityTracker
from nodesmith.services.nodes.registration import Registration, Revocation
from nodesmith.services.nodes.running_models import NodeModels
from nodesmith.services.nodes.trust_lists import TrustListNotifier
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.artifact_check import ArtifactCheck
from nodesmith.services.operations.bulk_actions import BulkActions
from nodesmith.services.operations.cancellation import Cancellation
from nodesmith.services.operations.hold import HoldService
from nodesmith.services.operations.intents import Intents, UriRules
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.operations.orders import OrderRenewals, Orders
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.access.credentials import Credentials
from nodesmith.store.access.invites import Invites as InviteTable
from nodesmith.store.access.sign_in import SignIn
from nodesmith.store.access.tokens import Tokens
from nodesmith.store.access.trust import TrustRecord, TrustVersions
from nodesmith.store.catalogue.sources import SourceTable
from nodesmith.store.clock import utc_now
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.labels import Labels
from nodesmith.store.nodes.lifecycle import NodeLife
from nodesmith.store.nodes.nats_credentials import NatsCredentials
from nodesmith.store.nodes.node_list import NodeList
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.nodes.overrides import Overrides
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.events import EventFeed
from nodesmith.store.operations.history import History
from nodesmith.store.operations.hold import Holds
from nodesmith.store.operations.idempotency import IdempotencyKeys
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.orders import OrderTable

log = structlog.stdlib.get_logger(__name__)

TRY_AGAIN_S = 0.5
SHORTEST_SECRET = 16
"""characters; a shorter secret can be guessed over HTTP"""


@dataclass(frozen=True)
class _Secrets:
    """The secrets that the API needs. They have no defaults, and are read before any connection is opened."""

    account_seed: str
    admin_token: str
    registration_token: str
    keyring: Keyring

    @classmethod
    def read(cls, settings: ControlSettings) -> "_Secrets":
        return cls(
            account_seed=_secret("NATS_ACCOUNT_SEED_FILE", settings.nats_account_seed_file),
            admin_token=_secret("ADMIN_TOKEN_FILE", settings.admin_token_file),
            registration_token=_secret("REGISTRATION_TOKEN_FILE", settings.registration_token_file),
            keyring=Keyring.opened(settings.order_keys),
        )


def _secret(name: str, path: Path | None) -> str:
    secret = path.read_text().strip() if path else ""
    if len(secret) < SHORTEST_SECRET:
        raise InvalidRequest(
            f"NODESMITH_{name} has to name a file with a secret of at least {SHORTEST_SECRET} characters in it."
        )
    return secret


async def compose(settings: ControlSettings, closing: AsyncExitStack, *, queue: str = CONTROL_QUEUE) -> Dependencies:
    """Build every dependency without waiting for a server. `closing` closes them in reverse order."""
    secrets = _Secrets.read(settings)
    issuer = CredentialIssuer(secrets.account_seed)
    database = Database(settings.database_url, settings.secret(settings.database_password_file))
    closing.push_async_callback(database.close)
    bus = await connect_control(
        settings.nats_url, issuer, name="api", keys=Nodes(database), connect_within=0, tls=trusting(settings.ca_file)
    )
    closing.push_async_callback(bus.close)
    temporal = await connect(settings, lazy=True)
    runs = TemporalRuns(temporal, queue=queue)
    guard = RootGuard(secrets.keyring, TrustRecord(database), settings.new_root)
    preparing = {
        POSTGRESQL: asyncio.create_task(_until_done(partial(_prepare_database, database, guard))),
        TEMPORAL: asyncio.create_task(_until_done(partial(prepare_namespace, temporal))),
    }
    closing.push_async_callback(_cancel, *preparing.values())
    gallery = BuiltinGallery(settings.gallery_folder)
    catalogue = await asyncio.to_thread(gallery.catalogue)
    reports, events, nodes, operations = _adapters(bus, database)
    invites = _invites(settings, database, secrets.keyring)
    revocation = compose_revocation(settings, database, secrets.account_seed, closing)
    await reports.start()
    orders = Orders(secrets.keyring, OrderTable(database), operations, utc_now)
    admission = _admission(settings, database, runs, catalogue, orders)
    galleries = compose_galleries(settings, database, catalogue, gallery.folder, admission)
    link = ReachabilityTracker(NodeClient(bus, reports), nodes, utc_now)
    closing.push_async_callback(link.close)
    return Dependencies(
        nodes=nodes,
        node_list=NodeList(database),
        labels=Labels(database),
        overrides=Overrides(database),
        inventory=Inventory(InventoryTable(database), link, utc_now),
        operations=operations,
        history=History(database),
        admission=admission,
        registration=_registration(
            settings, database, bus, secrets, issuer=issuer, invites=invites, revocation=revocation
        ),
        invites=invites,
        lifecycle=Lifecycle(nodes, NodeLife(database), runs, Presence(bus), utc_now, revocation),
        cancellation=Cancellation(nodes, operations, runs),
        bulk=BulkActions(History(database), Cancellation(nodes, operations, runs)),
        backend_stop=BackendStop(Presence(bus, secrets.keyring.seal_request)),
        models=NodeModels(ModelsClient(bus, secrets.keyring.seal_request), Presence(bus), utc_now),
        batches=Batches(database),
        batch_service=_batch_service(settings, database, runs, catalogue, orders),
        keyring=secrets.keyring,
        renewal=OrderRenewal(
            OrderRenewals(secrets.keyring, OrderTable(database), runs, utc_now),
            secrets.keyring,
            TrustListNotifier(secrets.keyring, TrustVersions(database), Presence(bus), utc_now),
            guard,
        ),
        prepared=preparing[POSTGRESQL],
        hold_service=HoldService(Holds(database), operations, runs, utc_now),
        sign_in=SignIn(database),
        access=Access(Tokens(database), SignIn(database), secrets.admin_token, utc_now),
        keys=IdempotencyKeys(database),
        audit=AuditTrail(database),
        failures=LoginFailures(settings.sign_in_failures),
        credentials=KnownCredentials(Credentials(database), (secrets.admin_token, secrets.registration_token)),
        catalogue=catalogue,
        gallery=galleries,
        artifacts=gallery.folder,
        link=link,
        events=events,
        heartbeats=HttpHeartbeats(nodes),
        health=Health(
            server_checks(database, bus, runs, preparing)
            | monitor_check(settings, temporal, database)
            | {GALLERIES: Check(galleries.galleries.check_signed, GALLERY_REFUSED, is_needed=False)}
        ),
        run_url=_run_links(settings),
        temporal_ui_url=settings.temporal_ui_url,
        serves_temporal_ui=bool(settings.temporal_ui_server),
    )


def _adapters(bus: Bus, database: Database) -> tuple[ReportHub, EventHub, Nodes, OperationTable]:
    reports, events = ReportHub(bus), EventHub(EventFeed(database))
    reports.on_progress(events.tick)
    return reports, events, Nodes(database), OperationTable(database)


def _admission(
    settings: ControlSettings, database: Database, runs: TemporalRuns, catalogue: Catalogue, orders: Orders
) -> Admission:
    operations = OperationTable(database)
    return Admission(
        nodes=Nodes(database),
        inventory=InventoryTable(database),
        operations=operations,
        gate=OperationLock(operations, runs, orders),
        orders=orders,
        intents=_intents(settings, database, catalogue),
        keys=IdempotencyKeys(database),
        policy=settings.policy,
        clock=utc_now,
    )


def _intents(settings: ControlSettings, database: Database, catalogue: Catalogue) -> Intents:
    sources = SourceTable(database, settings.secret(settings.sources_key_file))
    timeout = settings.registry_timeout.total_seconds()
    return Intents(
        catalogue,
        UriRules(
            settings.uri_schemes,
            without_digest=settings.uri_without_digest,
            sources=settings.sources(),
            role=settings.uri_installs,
        ),
        RegistryTags(sources.access, settings.sources(), timeout=timeout),
        ArtifactCheck(PublishedSignatures(sources.access, settings.sources(), timeout=timeout), utc_now),
    )


def _batch_service(
    settings: ControlSettings, database: Database, runs: TemporalRuns, catalogue: Catalogue, orders: Orders
) -> BatchService:
    return BatchService(
        nodes=Nodes(database),
        inventory=InventoryTable(database),
        batches=Batches(database),
        runs=runs,
        intents=_intents(settings, database, catalogue),
        orders=orders,
        keys=IdempotencyKeys(database),
        policy=settings.policy,
        clock=utc_now,
    )


def _invites(settings: ControlSettings, database: Database, keyring: Keyring) -> Invites:
    ca = settings.ca_file.read_text() if settings.ca_file else ""
    url = settings.public_url or f"http://{settings.api_host}:{settings.api_port}"
    join_address = JoinAddress(url, ca, fingerprint(ca) if ca else "", keyring)
    return Invites(InviteTable(database), Labels(database), AuditTrail(database), join_address, utc_now)


def _registration(
    settings: ControlSettings,
    database: Database,
    bus: Bus,
    secrets: _Secrets,
    *,
    issuer: CredentialIssuer,
    invites: Invites,
    revocation: Revocation,
) -> Registration:
    return Registration(
        nodes=Nodes(database),
        claims=NodeLife(database),
        presence=Presence(bus),
        invites=invites,
        trail=AuditTrail(database),
        issuer=issuer,
        nats_credentials=NatsCredentials(database),
        revocation=revocation,
        registration_token=secrets.registration_token,
        nats_url=settings.nats_public_url or settings.nats_url,
        credential_lifetime=settings.nats_credential_lifetime,
        auto_approve=settings.auto_approve,
        max_pending=settings.pending_nodes,
        localai_workers=settings.localai_workers,
        clock=utc_now,
        trusted=secrets.keyring,
        orders=OrderTable(database),
    )


def _run_links(settings: ControlSettings) -> Callable[[str, str], str]:
    if not settings.temporal_ui_url:
        return lambda _workflow_id, _run_id: ""
    return partial(run_url, settings.temporal_ui_url, settings.temporal_namespace)


async def _prepare_database(database: Database, guard: RootGuard) -> None:
    await database.migrate()
    await guard.check()


async def _until_done(prepare: Callable[[], Awaitable[None]]) -> None:
    """Retry `prepare` (migrations, search attributes) until its server answers."""
    while True:
        try:
            return await prepare()
        except ForeignRoot:  # a retry cannot help: the process ends
            raise
        except (NodesmithError, SQLAlchemyError, RPCError, RuntimeError) as error:
            log.info("server.not_prepared", error=str(error))
            await asyncio.sleep(TRY_AGAIN_S)


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    """Cancel tasks until they have ended: a driver that is connecting may swallow the first cancel."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=TRY_AGAIN_S)
