"""The catalogue for people: search, pages, and the nodes that have each backend."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from nodesmith.domain.eligibility import runs_backends
from nodesmith.domain.errors import NoBuildForNode, ServiceUnavailable, UnknownBackend
from nodesmith.domain.gallery import Gallery
from nodesmith.domain.identity import family_of
from nodesmith.domain.installed import Installation
from nodesmith.domain.node import Node
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.entries import Entry, Unusable
from nodesmith.gallery.suitability import Suitability, capability_of, suitability
from nodesmith.services.catalogue.galleries import Galleries
from nodesmith.services.catalogue.upgrades import AvailableUpgrade, Upgrades
from nodesmith.services.operations.artifact_check import requirement

EVERYTHING = 10_000


class InstalledFamilies(Protocol):
    async def families(self) -> set[str]: ...
    async def list(self, families: Collection[str] | None = None) -> Sequence[Installation]: ...


@dataclass(frozen=True)
class Search:
    """Filter, order and page of a catalogue request."""

    term: str = ""
    tag: str = ""
    gallery: str = ""
    page: int = 1
    items: int = EVERYTHING
    sort: str = "name"
    descending: bool = False


@dataclass(frozen=True)
class Place:
    """An entry of a sorted catalogue: where a page ended."""

    key: str
    """its sort key"""
    gallery: str
    name: str
    version: str


@dataclass(frozen=True, kw_only=True)
class FoundBackend:
    """One backend of the catalogue, and what the fleet has of it."""

    entry: Entry
    is_alias: bool = False
    """it is one of the builds that a meta names"""
    verification: str = ""
    """how an install is verified: the policy of its gallery"""
    installations: Sequence[Installation] = ()
    """the nodes that have it"""
    upgradable_on: Sequence[str] = ()
    """names of the nodes that have an older or a different build"""

    @property
    def id(self) -> str:
        return f"{self.entry.gallery}@{self.entry.artifact.name}"


@dataclass(frozen=True, kw_only=True)
class CataloguePage:
    """One page of the catalogue."""

    backends: Sequence[FoundBackend]
    galleries: Sequence[Gallery] = ()
    tags: Sequence[str]
    """every tag of the catalogue"""
    found: int
    """backends on all pages"""
    installed: int
    """installed families"""
    page: int
    pages: int
    unusable: Sequence[Unusable] = field(default_factory=list)
    stale: bool = False
    """the database does not answer: galleries as last known, without information about nodes"""


@dataclass(frozen=True, kw_only=True)
class NodeSuitability:
    """How a backend fits a node, and which build the node would get."""

    node_id: str
    node_name: str
    node_status: str
    capability: str
    """the hardware of the node, as galleries name it"""
    suitability: str
    build: str = ""
    """empty if there is none"""
    reason: str = ""
    """why there is none"""


@dataclass(frozen=True)
class CatalogueService:
    galleries: Galleries
    installations: InstalledFamilies
    upgrades: Upgrades

    async def page(self, search: Search, after: Place | None = None) -> tuple[CataloguePage, Place | None]:
        """One page, by its number or after a place, and the place where it ends if there is more.

        Without the database it is the last known catalogue, without nodes and marked stale.
        """
        try:
            await self.galleries.sync()
            return await self._page(search, after, await self.installations.families(), await self.galleries.list())
        except ServiceUnavailable:
            page, following = await self._page(search, after, None, [])
            return replace(page, stale=True), following

    async def _page(
        self, search: Search, after: Place | None, known: Collection[str] | None, galleries: Sequence[Gallery]
    ) -> tuple[CataloguePage, Place | None]:
        catalogue, installed = self.galleries.catalogue, known or ()
        found = [entry for entry in catalogue.listed() if _matches(entry, search)]
        found.sort(key=lambda entry: _order(entry, search.sort, installed), reverse=search.descending)
        pages = max(1, math.ceil(len(found) / search.items))
        page = min(max(1, search.page), pages)
        places = [_place(entry, search.sort, installed) for entry in found]
        first = _first_after(after, places, descending=search.descending) if after else (page - 1) * search.items
        shown = found[first : first + search.items]
        is_last = first + search.items >= len(found)
        return CataloguePage(
            backends=await self._found(shown, is_fleet_known=known is not None),
            galleries=galleries,
            tags=sorted({tag for entry in catalogue.listed() for tag in entry.tags}),
            found=len(found),
            installed=len(installed),
            page=page,
            pages=pages,
            unusable=_unusable(catalogue, search),
        ), None if is_last else places[first + search.items - 1]

    async def _found(self, shown: Sequence[Entry], *, is_fleet_known: bool) -> list[FoundBackend]:
        families = {entry.artifact.family for entry in shown} | {family_of(entry.artifact.name) for entry in shown}
        where: dict[str, list[Installation]] = defaultdict(list)
        for each in await self.installations.list(families) if is_fleet_known else ():
            where[family_of(each.installed.name)].append(each)
        upgrades = await self.upgrades.list() if is_fleet_known else {}
        listed_by_metas = {
            family_of(name)
            for entry in self.galleries.catalogue.listed()
            if entry.is_meta
            for name in entry.capabilities.values()
        }
        needed = {gallery: self._requirement(gallery) for gallery in {entry.gallery for entry in shown}}
        return [
            FoundBackend(
                entry=entry,
                is_alias=family_of(entry.artifact.name) in listed_by_metas,
                verification=needed[entry.gallery],
                installations=_having(entry, where),
                upgradable_on=_upgradable_on(entry, upgrades),
            )
            for entry in shown
        ]

    def _requirement(self, gallery: str) -> str:
        return requirement(gallery, self.galleries.catalogue.trust(gallery))

    async def suitability(self, backend: str, nodes: Sequence[Node]) -> list[NodeSuitability]:
        """The suitability of a backend for each node."""
        await self.galleries.sync()
        entry = self.galleries.catalogue.find(backend)
        if entry is None:
            raise UnknownBackend(f"No gallery has the backend {backend}.", backend=backend)
        return [self._suitability_for(backend, node) for node in nodes if runs_backends(node)]

    def _suitability_for(self, backend: str, node: Node) -> NodeSuitability:
        capability, reason = capability_of(node.capability, node.gpu_vendor, node.total_vram), ""
        try:
            artifact = self.galleries.catalogue.resolve(backend, capability=capability)
        except NoBuildForNode as nothing:
            artifact, reason = None, nothing.message
        fits = suitability(artifact, capability) if artifact else Suitability.IMPOSSIBLE
        return NodeSuitability(
            node_id=node.id,
            node_name=node.name,
            node_status=node.status,
            capability=capability,
            suitability=fits,
            build=artifact.name if artifact else "",
            reason=reason,
        )


def _matches(entry: Entry, search: Search) -> bool:
    artifact = entry.artifact
    if search.tag and search.tag.casefold() not in {tag.casefold() for tag in entry.tags}:
        return False
    if search.gallery and search.gallery.casefold() != entry.gallery.casefold():
        return False
    text = " ".join((artifact.name, artifact.description, entry.alias, entry.gallery, *entry.tags)).casefold()
    return all(word in text for word in search.term.casefold().split())


def _order(entry: Entry, sort: str, installed: Collection[str]) -> str:
    """The sort key. Python's sort is stable: equal entries stay by name, newest first."""
    if sort == "repository":
        return entry.gallery.casefold()
    if sort == "license":
        return entry.license.casefold()
    if sort == "status":
        return "0" if entry.artifact.family in installed else "1"
    return entry.artifact.name.casefold()


def _place(entry: Entry, sort: str, installed: Collection[str]) -> Place:
    return Place(_order(entry, sort, installed), entry.gallery, entry.artifact.name, entry.artifact.version)


def _first_after(place: Place, places: Sequence[Place], *, descending: bool) -> int:
    """The index after that place. If its entry is gone: the first that follows by sort key, then by name."""
    identity = (place.gallery, place.name, place.version)
    same = [index for index, each in enumerate(places) if (each.gallery, each.name, each.version) == identity]
    if same:
        return same[-1] + 1
    for index, each in enumerate(places):
        is_beyond = each.key < place.key if descending else each.key > place.key
        if is_beyond or (each.key == place.key and each.name.casefold() > place.name.casefold()):
            return index
    return len(places)


def _unusable(catalogue: Catalogue, search: Search) -> list[Unusable]:
    if search.term or search.tag:
        return []
    return [bad for bad in catalogue.unusable() if search.gallery.casefold() in ("", bad.gallery.casefold())]


def _having(entry: Entry, where: Mapping[str, Sequence[Installation]]) -> list[Installation]:
    artifact = entry.artifact
    return [each for each in where.get(family_of(artifact.name), ()) if _has_version(each, artifact.version)]


def _upgradable_on(entry: Entry, upgrades: Mapping[str, AvailableUpgrade]) -> Sequence[str]:
    upgrade = upgrades.get(entry.artifact.name)
    is_newest = upgrade is not None and upgrade.available_version == entry.artifact.version
    return upgrade.nodes if upgrade and is_newest else ()


def _has_version(each: Installation, version: str) -> bool:
    return not version or not each.installed.version or each.installed.version == version
