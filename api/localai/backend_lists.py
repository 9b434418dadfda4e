"""The catalogue and the fleet's backends in the response format of LocalAI's API."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodesmith.contracts.http.localai import (
    AvailableBackend,
    BackendMetadata,
    GalleryReference,
    InstalledBackend,
    KnownBackend,
    NodeBackendRef,
)
from nodesmith.domain.eligibility import obstacle
from nodesmith.domain.errors import NoBuildForNode
from nodesmith.domain.identity import family_of
from nodesmith.domain.installed import Installation
from nodesmith.domain.node import Node, NodeStatus
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.entries import Entry
from nodesmith.gallery.suitability import Suitability, capability_of, suitability
from nodesmith.services.catalogue.galleries import Galleries
from nodesmith.services.catalogue.search import InstalledFamilies
from nodesmith.services.catalogue.upgrades import AvailableUpgrade, Upgrades

WITHOUT_GPU = "default"
"""the capability of the API's own machine, so that the list is never empty"""

_MODALITIES = {
    "text": ("llm", "text-to-text", "chat"),
    "asr": ("asr", "speech-to-text", "transcription", "audio-transcription"),
    "tts": ("tts", "text-to-speech"),
    "image": ("text-to-image", "image-generation", "image"),
    "video": ("text-to-video", "video-generation"),
    "embeddings": ("embeddings", "embedding"),
    "reranker": ("rerank", "reranker", "reranking"),
    "detection": ("object-detection", "detection"),
    "vad": ("vad", "voice-activity-detection"),
}
"""modality -> the tags that indicate it, in the order in which they are tried"""


@dataclass(frozen=True)
class LocalaiCatalogue:
    galleries: Galleries
    installations: InstalledFamilies
    upgrades: Upgrades

    async def installed(self) -> list[InstalledBackend]:
        """Every installed backend, with the nodes that have it."""
        await self.galleries.sync()
        upgrades = await self.upgrades.list()
        by_name: dict[str, list[Installation]] = defaultdict(list)
        for each in await self.installations.list():
            by_name[each.installed.name].append(each)
        return [self._installed(group, upgrades.get(name)) for name, group in sorted(by_name.items())]

    async def available(self, nodes: Sequence[Node]) -> list[AvailableBackend]:
        """The backends that can be installed by name and run on a healthy node or on a machine without a GPU."""
        references = {each.name: each for each in await self.references()}
        installed = await self._names()
        capabilities = {WITHOUT_GPU, *(_capability(node) for node in nodes if _is_candidate(node))}
        catalogue = self.galleries.catalogue
        return [
            _available(entry, references, installed)
            for entry in _newest(catalogue)
            if any(_runs(catalogue, entry, capability) for capability in capabilities)
        ]

    async def known(self) -> list[KnownBackend]:
        """The backend names, and whether any node has a build of each."""
        await self.galleries.sync()
        installed = await self._names()
        return [
            KnownBackend(
                name=entry.artifact.name,
                modality=next(iter(modalities(entry.tags)), ""),
                description=entry.artifact.description.strip() or None,
                installed=_is_installed(entry, installed),
            )
            for entry in _choices(self.galleries.catalogue)
        ]

    async def uses(self) -> dict[str, list[str]]:
        """The modalities of each backend; most have one, some several."""
        await self.galleries.sync()
        chosen = _choices(self.galleries.catalogue)
        return {entry.artifact.name: sorted(modalities(entry.tags)) for entry in chosen}

    async def references(self) -> list[GalleryReference]:
        return [
            GalleryReference(name=gallery.name, url=gallery.url, mirrors=list(gallery.mirrors) or None)
            for gallery in await self.galleries.list()
        ]

    async def _names(self) -> set[str]:
        """The names of the installed builds, and their families."""
        installed = [each.installed for each in await self.installations.list()]
        return {family_of(each.name) for each in installed} | {each.family for each in installed}

    def _installed(self, group: Sequence[Installation], upgrade: AvailableUpgrade | None) -> InstalledBackend:
        usual = Counter((each.installed.version, each.installed.digest) for each in group).most_common(1)[0][0]
        most = next(each.installed for each in group if (each.installed.version, each.installed.digest) == usual)
        entry = self.galleries.catalogue.find(most.name)
        return InstalledBackend(
            Name=most.name,
            IsMeta=most.is_meta,
            IsSystem=most.is_system,
            Metadata=BackendMetadata(
                alias=(entry.alias if entry else "") or None,
                name=most.name,
                gallery_url=most.gallery_url or None,
                installed_at=most.installed_at,
                version=most.version or None,
                uri=most.uri or None,
                digest=most.digest or None,
            ),
            upgrade_available=True if upgrade else None,
            available_version=(upgrade.available_version if upgrade else "") or None,
            nodes=[_reference(each) for each in group],
        )


def modalities(tags: Iterable[str]) -> list[str]:
    """The modalities that the tags indicate, the main one first."""
    given = {tag.casefold().replace(" ", "-") for tag in tags}
    return [name for name, known in _MODALITIES.items() if given.intersection(known)]


def _newest(catalogue: Catalogue) -> list[Entry]:
    """The default version of each name and gallery: LocalAI lists only one."""
    found = {(entry.gallery, entry.artifact.name): None for entry in catalogue.listed()}
    newest = (catalogue.find(f"{gallery}@{name}") for gallery, name in found)
    return [entry for entry in newest if entry is not None]


def _choices(catalogue: Catalogue) -> list[Entry]:
    """The entries to choose from: metas, and builds without a meta."""
    return [entry for entry in _newest(catalogue) if entry.is_meta or not entry.artifact.meta]


def _is_candidate(node: Node) -> bool:
    return obstacle(node) is None and node.status is NodeStatus.HEALTHY


def _capability(node: Node) -> str:
    return capability_of(node.capability, node.gpu_vendor, node.total_vram)


def _runs(catalogue: Catalogue, entry: Entry, capability: str) -> bool:
    if not entry.is_meta:
        return suitability(entry.artifact, capability) is Suitability.COMPATIBLE
    try:
        return catalogue.resolve(f"{entry.gallery}@{entry.artifact.name}", capability=capability) is not None
    except NoBuildForNode:
        return False


def _is_installed(entry: Entry, installed: set[str]) -> bool:
    """A meta is installed if any of its builds is; a build only if it is itself."""
    return (entry.artifact.family if entry.is_meta else family_of(entry.artifact.name)) in installed


def _available(entry: Entry, references: Mapping[str, GalleryReference], installed: set[str]) -> AvailableBackend:
    artifact = entry.artifact
    return AvailableBackend(
        name=artifact.name,
        alias=entry.alias or None,
        description=artifact.description.strip() or None,
        license=entry.license or None,
        icon=entry.icon or None,
        urls=list(entry.urls) or None,
        tags=sorted(entry.tags) or None,
        uri=artifact.uri or None,
        mirrors=list(artifact.mirrors) or None,
        capabilities=dict(entry.capabilities) if entry.is_meta else None,
        version=artifact.version or None,
        sha256=artifact.sha256 or None,
        size=artifact.size or None,
        gallery=references.get(entry.gallery, GalleryReference(name=entry.gallery)),
        installed=_is_installed(entry, installed),
    )


def _reference(each: Installation) -> NodeBackendRef:
    installed = each.installed
    return NodeBackendRef(
        node_id=each.node_id,
        node_name=each.node_name,
        node_status=each.node_status,
        version=installed.version or None,
        digest=installed.digest or None,
        uri=installed.uri or None,
        installed_at=installed.installed_at,
    )
