"""The dependencies of the gallery routes, and their background tasks."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from nodesmith.api.localai.backend_lists import LocalaiCatalogue
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.kinds import Kind
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.entries import Entry
from nodesmith.gallery.index_reader import IndexReader
from nodesmith.gallery.tags import RegistryTags
from nodesmith.gallery.upload_folder import UploadFolder
from nodesmith.runtime.settings import ControlSettings
from nodesmith.services.access.source_secrets import SourceSecrets
from nodesmith.services.catalogue.galleries import Galleries
from nodesmith.services.catalogue.search import CatalogueService
from nodesmith.services.catalogue.upgrades import ACTOR, Ask, Upgrades
from nodesmith.services.catalogue.uploads import UploadService
from nodesmith.services.operations.admission import Admission
from nodesmith.services.requested_work import RequestedBackend
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.catalogue.galleries import GalleryTable, UploadTable
from nodesmith.store.catalogue.sources import SourceTable
from nodesmith.store.catalogue.tags import TagDigests
from nodesmith.store.clock import utc_now
from nodesmith.store.database import Database
from nodesmith.store.nodes.installations import Installations
from nodesmith.store.operations.operations import OperationTable

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True)
class GalleryDependencies:
    galleries: Galleries
    catalogue_service: CatalogueService
    localai: LocalaiCatalogue
    uploads: UploadService
    upload_table: UploadTable
    upgrades: Upgrades
    sources: SourceTable
    secrets: SourceSecrets

    async def run(self) -> None:
        await asyncio.gather(self.galleries.run(), self.upgrades.run())


def compose_galleries(
    settings: ControlSettings, database: Database, catalogue: Catalogue, folder: Path, admission: Admission
) -> GalleryDependencies:
    """Build them. `catalogue` is updated in place, so every holder sees the current state of the galleries."""
    builtin: Sequence[Entry] = catalogue.listed()
    sources = SourceTable(database, settings.secret(settings.sources_key_file))
    uploads, installations = UploadTable(database), Installations(database)
    galleries = Galleries(
        table=GalleryTable(database),
        uploads=uploads,
        reader=IndexReader(sources.access, settings.sources()),
        catalogue=catalogue,
        builtin=builtin,
        refresh_every=settings.gallery_refresh,
        clock=utc_now,
    )
    upgrades = Upgrades(
        catalogue=catalogue,
        installations=installations,
        tags=TagDigests(database),
        registries=RegistryTags(sources.access, settings.sources()),
        clock=utc_now,
        check_every=settings.upgrade_check,
        ask=_asking(admission) if settings.auto_upgrade else None,
    )
    return GalleryDependencies(
        galleries=galleries,
        catalogue_service=CatalogueService(galleries, installations, upgrades),
        localai=LocalaiCatalogue(galleries, installations, upgrades),
        uploads=UploadService(uploads, UploadFolder(folder, limit=settings.upload_limit), galleries, builtin),
        upload_table=uploads,
        upgrades=upgrades,
        sources=sources,
        secrets=SourceSecrets(OperationTable(database), admission.orders, sources, AuditTrail(database)),
    )


def _asking(admission: Admission) -> Ask:
    """Return a function that starts upgrades; a node that cannot be upgraded now does not stop the others."""

    async def ask(kind: Kind, node: str, request: RequestedBackend, key: str) -> None:
        try:
            await admission.ask(kind, node, request, actor=ACTOR, idempotency_key=key)
        except NodesmithError as error:
            log.info("upgrade.not_asked", node=node, backend=request.backend, error=error.message)

    return ask
