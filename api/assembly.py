"""Build the dependencies of the routes from settings. Missing servers are retried while the process runs."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

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
from nodesmith.bus.credentials import CredentialIssuer
from nodesmith.contracts.temporal.operations import CONTROL_QUEUE
from nodesmith.control.api_graph import ApiGraph
from nodesmith.control.api_secrets import ApiSecrets
from nodesmith.control.servers import open_bus, open_database
from nodesmith.domain.errors import ForeignRoot, NodesmithError
from nodesmith.gallery.builtin import BuiltinGallery
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import connect, prepare_namespace, run_url
from nodesmith.services.access.trust_roots import RootGuard
from nodesmith.store.access.trust import TrustRecord
from nodesmith.store.database import Database
from nodesmith.store.models.reading import DeploymentReader
from nodesmith.store.nodes.node_list import NodeList
from nodesmith.store.nodes.overrides import Overrides
from nodesmith.store.operations.events import EventFeed

log = structlog.stdlib.get_logger(__name__)

TRY_AGAIN_S = 0.5


async def compose(settings: ControlSettings, closing: AsyncExitStack, *, queue: str = CONTROL_QUEUE) -> Dependencies:
    """Build every dependency without waiting for a server. `closing` closes them in reverse order."""
    secrets = ApiSecrets.read(settings)
    issuer = CredentialIssuer(secrets.account_seed)
    database = open_database(settings, closing)
    bus = await open_bus(settings, database, issuer, closing, name="api")
    temporal = await connect(settings, lazy=True)
    guard = RootGuard(secrets.keyring, TrustRecord(database), settings.new_root)
    preparing = {
        POSTGRESQL: asyncio.create_task(_until_done(partial(_prepare_database, database, guard))),
        TEMPORAL: asyncio.create_task(_until_done(partial(prepare_namespace, temporal))),
    }
    closing.push_async_callback(_cancel, *preparing.values())
    gallery = BuiltinGallery(settings.gallery_folder)
    graph = ApiGraph(
        settings,
        database,
        bus,
        temporal,
        secrets=secrets,
        issuer=issuer,
        catalogue=await asyncio.to_thread(gallery.catalogue),
        revocation=compose_revocation(settings, database, secrets.account_seed, closing),
        queue=queue,
    )
    events = EventHub(EventFeed(database))
    graph.reports.on_progress(events.tick)
    await graph.reports.start()
    closing.push_async_callback(graph.link.close)
    galleries = compose_galleries(settings, database, graph.catalogue, gallery.folder, graph.admission)
    return Dependencies(
        nodes=graph.nodes,
        node_list=NodeList(database),
        labels=graph.labels,
        overrides=Overrides(database),
        inventory=graph.inventory,
        operations=graph.operations,
        history=graph.history,
        admission=graph.admission,
        registration=graph.registration,
        invites=graph.invites,
        lifecycle=graph.lifecycle,
        cancellation=graph.cancellation,
        bulk=graph.bulk,
        backend_stop=graph.backend_stop,
        models=graph.models,
        deployments=DeploymentReader(database, graph.deployments),
        model_service=graph.model_service,
        call_holds=graph.call_holds,
        starter=graph.replica_starter,
        batches=graph.batches,
        batch_service=graph.batch_service,
        keyring=secrets.keyring,
        renewal=OrderRenewal(graph.renewals, secrets.keyring, graph.trust_notifier, guard),
        prepared=preparing[POSTGRESQL],
        hold_service=graph.hold_service,
        sign_in=graph.sign_in,
        access=graph.access,
        keys=graph.keys,
        audit=graph.audit,
        failures=LoginFailures(settings.sign_in_failures),
        credentials=graph.credentials,
        catalogue=graph.catalogue,
        gallery=galleries,
        artifacts=gallery.folder,
        link=graph.link,
        events=events,
        heartbeats=HttpHeartbeats(graph.nodes),
        health=Health(
            server_checks(database, bus, graph.runs, preparing)
            | monitor_check(settings, temporal, database)
            | {GALLERIES: Check(galleries.galleries.check_signed, GALLERY_REFUSED, is_needed=False)}
        ),
        run_url=_run_links(settings),
        temporal_ui_url=settings.temporal_ui_url,
        serves_temporal_ui=bool(settings.temporal_ui_server),
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
