"""Views of the catalogue, with LocalAI's field names."""

from collections.abc import Sequence

from nodesmith.api.views.shapes import views_of
from nodesmith.contracts.http.galleries import CatalogueEntry, CataloguePage, GalleryName, InstalledOn, UnusableEntry
from nodesmith.domain.installed import Installation
from nodesmith.services.catalogue import search


def catalogue_page(page: search.CataloguePage) -> CataloguePage:
    return CataloguePage(
        backends=[_entry(each) for each in page.backends],
        repositories=views_of(GalleryName, page.galleries),
        allTags=list(page.tags),
        availableBackends=page.found,
        installedBackends=page.installed,
        currentPage=page.page,
        totalPages=page.pages,
        prevPage=max(1, page.page - 1),
        nextPage=min(page.pages, page.page + 1),
        unusable=views_of(UnusableEntry, page.unusable),
        stale=page.stale,
    )


def _entry(found: search.FoundBackend) -> CatalogueEntry:
    entry, artifact = found.entry, found.entry.artifact
    return CatalogueEntry(
        id=found.id,
        name=artifact.name,
        version=artifact.version,
        description=artifact.description,
        uri=artifact.uri,
        sha256=artifact.sha256,
        size=artifact.size,
        gallery=entry.gallery,
        icon=entry.icon,
        license=entry.license,
        urls=list(entry.urls),
        tags=sorted(entry.tags),
        installed=bool(found.installations),
        isMeta=entry.is_meta,
        isAlias=found.is_alias,
        isDevelopment=entry.is_development,
        capabilities=dict(entry.capabilities) if entry.is_meta else {},
        metaBackendFor=artifact.meta,
        nodes=_nodes(found.installations),
        family=artifact.family,
        alias=entry.alias,
        mirrors=list(artifact.mirrors),
        platforms=list(artifact.platforms),
        notes=entry.notes,
        verification=found.verification,
        upgradable_on=list(found.upgradable_on),
    )


def _nodes(installations: Sequence[Installation]) -> list[InstalledOn]:
    return [
        InstalledOn(
            node_id=each.node_id,
            node_name=each.node_name,
            node_status=each.node_status,
            version=each.installed.version,
            digest=each.installed.digest,
            uri=each.installed.uri,
            installed_at=each.installed.installed_at,
        )
        for each in installations
    ]
