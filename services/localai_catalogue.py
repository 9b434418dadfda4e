"""The catalogue and the fleet's backends in LocalAI's API flavour: the same state as ours, in its shapes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from contracts.galleries import Installation, UpgradeInfo
from contracts.localai_http import (
    AvailableBackend,
    BackendMetadata,
    GalleryReference,
    InstalledBackend,
    KnownBackend,
    NodeBackendRef,
)
from contracts.node_http import NodeView
from domain.errors import NoBuildForNode
from domain.identity import family_of
from domain.node import NodeStatus, NodeType
from gallery.catalogue import Catalogue
from gallery.entries import Entry
from gallery.suitability import Suitability, capability_of, suitability
from services.catalogue import Fleet
from services.galleries import Galleries
from services.upgrades import Upgrades

WITHOUT_CARD = "default"
"""what the machine that answers counts as: it is never left without a choice"""

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
"""what a backend is for -> the tags that tell it, in the order in which they are tried"""


@dataclass(frozen=True)
class LocalaiCatalogue:
    galleries: Galleries
    fleet: Fleet
    upgrades: Upgrades

    async def installed(self) -> list[InstalledBackend]:
        """Every backend that a node has, with the nodes that have it."""
        await self.galleries.sync()
        upgrades = await self.upgrades.list()
        by_name: dict[str, list[Installation]] = defaultdict(list)
        for each in await self.fleet.list():
            by_name[each.installed.name].append(each)
        return [self._installed(group, upgrades.get(name)) for name, group in sorted(by_name.items())]

    async def available(self, nodes: Sequence[NodeView]) -> list[AvailableBackend]:
        """What can be installed by name and runs on a healthy node, or on a machine without a card."""
        references = {each.name: each for each in await self.references()}
        installed = await self._names()
        capabilities = {WITHOUT_CARD, *(_capability(node) for node in nodes if _takes_backends(node))}
        catalogue = self.galleries.catalogue
        return [
            _available(entry, references, installed)
            for entry in _newest(catalogue)
            if any(_runs(catalogue, entry, capability) for capability in capabilities)
        ]

    async def known(self) -> list[KnownBackend]:
        """The names, and whether a node has any of theirs."""
        await self.galleries.sync()
        installed = await self._names()
        return [
            KnownBackend(
                name=entry.artifact.name,
                modality=next(iter(modalities(entry.tags)), ""),
                description=entry.artifact.description.strip() or None,
                installed=_is_installed(entry, installed),
            )
            for entry in _chosen_from(self.galleries.catalogue)
        ]

    async def uses(self) -> dict[str, list[str]]:
        """What each of them is for; most are for one thing, some for several."""
        await self.galleries.sync()
        chosen = _chosen_from(self.galleries.catalogue)
        return {entry.artifact.name: sorted(modalities(entry.tags)) for entry in chosen}

    async def references(self) -> list[GalleryReference]:
        return [
            GalleryReference(name=view.name, url=view.url, mirrors=view.mirrors or None)
            for view in await self.galleries.list()
        ]

    async def _names(self) -> set[str]:
        """What the fleet has: by the name of a build, and by the family that a meta stands for."""
        fleet = [each.installed for each in await self.fleet.list()]
        return {family_of(each.name) for each in fleet} | {each.family for each in fleet}

    def _installed(self, group: Sequence[Installation], upgrade: UpgradeInfo | None) -> InstalledBackend:
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
    """What a backend is for, what it is mainly for first."""
    said = {tag.casefold().replace(" ", "-") for tag in tags}
    return [name for name, telling in _MODALITIES.items() if said.intersection(telling)]


def _newest(catalogue: Catalogue) -> list[Entry]:
    """LocalAI knows one version of a name in a gallery: the one that is installed when none is named."""
    found = {(entry.gallery, entry.artifact.name): None for entry in catalogue.listed()}
    newest = (catalogue.find(f"{gallery}@{name}") for gallery, name in found)
    return [entry for entry in newest if entry is not None]


def _chosen_from(catalogue: Catalogue) -> list[Entry]:
    """What people choose from: metas, and builds that belong to none."""
    return [entry for entry in _newest(catalogue) if entry.is_meta or not entry.artifact.meta]


def _takes_backends(node: NodeView) -> bool:
    return node.node_type is NodeType.BACKEND and node.status is NodeStatus.HEALTHY


def _capability(node: NodeView) -> str:
    return capability_of(node.capability, node.gpu_vendor, node.total_vram)


def _runs(catalogue: Catalogue, entry: Entry, capability: str) -> bool:
    if not entry.is_meta:
        return suitability(entry.artifact, capability) is Suitability.COMPATIBLE
    try:
        return catalogue.resolve(f"{entry.gallery}@{entry.artifact.name}", capability=capability) is not None
    except NoBuildForNode:
        return False


def _is_installed(entry: Entry, installed: set[str]) -> bool:
    """Of a meta any build counts; of a build only that one."""
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
