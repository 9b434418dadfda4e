"""What the routes of galleries are made of, and what of it runs beside the requests."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from contracts.operation_http import InstallRequest
from domain.errors import NodesmithError
from domain.operation import Kind
from gallery.catalogue import Catalogue
from gallery.entries import Entry
from gallery.fetching import Fetcher
from gallery.storeroom import Storeroom
from gallery.tags import RegistryTags
from runtime.settings import ControlSettings
from services.admission import Admission
from services.catalogue import CatalogueDesk
from services.galleries import Galleries
from services.localai_catalogue import LocalaiCatalogue
from services.upgrades import ACTOR, Ask, Upgrades
from services.uploads import UploadDesk
from store.clock import utc_now
from store.database import Database
from store.galleries import GalleryTable, UploadTable
from store.installations import Installations
from store.sources import SourceTable
from store.tags import TagDigests

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True)
class GalleryParts:
    galleries: Galleries
    desk: CatalogueDesk
    localai: LocalaiCatalogue
    uploads: UploadDesk
    upload_table: UploadTable
    upgrades: Upgrades
    sources: SourceTable

    async def run(self) -> None:
        await asyncio.gather(self.galleries.run(), self.upgrades.run())


def compose_galleries(
    settings: ControlSettings, database: Database, catalogue: Catalogue, folder: Path, admission: Admission
) -> GalleryParts:
    """`catalogue` is kept up to date in place: whoever holds it sees what the galleries say now."""
    builtin: Sequence[Entry] = catalogue.listed()
    sources = SourceTable(database, settings.secret(settings.sources_key_file))
    uploads, fleet = UploadTable(database), Installations(database)
    galleries = Galleries(
        table=GalleryTable(database),
        uploads=uploads,
        reader=Fetcher(sources.access),
        catalogue=catalogue,
        builtin=builtin,
        refresh_every=settings.gallery_refresh,
    )
    upgrades = Upgrades(
        catalogue=catalogue,
        fleet=fleet,
        tags=TagDigests(database),
        registries=RegistryTags(sources.access),
        clock=utc_now,
        check_every=settings.upgrade_check,
        ask=_asking(admission) if settings.auto_upgrade else None,
    )
    return GalleryParts(
        galleries=galleries,
        desk=CatalogueDesk(galleries, fleet, upgrades),
        localai=LocalaiCatalogue(galleries, fleet, upgrades),
        uploads=UploadDesk(uploads, Storeroom(folder, limit=settings.upload_limit), galleries, builtin),
        upload_table=uploads,
        upgrades=upgrades,
        sources=sources,
    )


def _asking(admission: Admission) -> Ask:
    """One node that cannot be upgraded now does not keep the others from it."""

    async def ask(kind: Kind, node: str, request: InstallRequest, key: str) -> None:
        try:
            await admission.ask(kind, node, request, actor=ACTOR, idempotency_key=key)
        except NodesmithError as error:
            log.info("upgrade.not_asked", node=node, backend=request.backend, error=error.message)

    return ask
