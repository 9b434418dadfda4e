"""The catalogue: all known backends, and which artifact a name resolves to on a node."""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from nodesmith.domain.artifact import Artifact
from nodesmith.domain.errors import NoBuildForNode
from nodesmith.domain.gallery_trust import GalleryTrust
from nodesmith.domain.identity import family_of
from nodesmith.gallery.entries import BROKEN, Entry, Unusable
from nodesmith.gallery.metas import choose_build, with_families
from nodesmith.gallery.suitability import Suitability, is_for_some_hardware, preference, suitability

_BY_DIGEST = GalleryTrust()
_NONE_SET: Mapping[str, GalleryTrust] = MappingProxyType({})


class Catalogue:
    """The entries of all galleries; earlier galleries take precedence. The content is replaced as a whole."""

    def __init__(
        self,
        entries: Iterable[Entry],
        unusable: Iterable[Unusable] = (),
        trust: Mapping[str, GalleryTrust] = _NONE_SET,
    ) -> None:
        self.replace(entries, unusable, trust)

    def replace(
        self,
        entries: Iterable[Entry],
        unusable: Iterable[Unusable] = (),
        trust: Mapping[str, GalleryTrust] = _NONE_SET,
    ) -> None:
        """Replace the content; `trust` says per gallery how its artifacts are verified."""
        resolved = [entry if entry.artifact.family else with_families([entry])[0] for entry in entries]
        names: dict[str, list[Entry]] = {}
        aliases: dict[str, list[Entry]] = {}
        for entry in resolved:
            names.setdefault(family_of(entry.artifact.name), []).append(entry)
            if entry.alias:
                aliases.setdefault(family_of(entry.alias), []).append(entry)
        self._entries, self._unusable, self._names, self._aliases = resolved, list(unusable), names, aliases
        self._trust = dict(trust)

    def trust(self, gallery: str) -> GalleryTrust:
        """How artifacts of this gallery are verified; those of the built-in one by digest."""
        return self._trust.get(gallery, _BY_DIGEST)

    def listed(self) -> Sequence[Entry]:
        """All entries, by name and then newest first."""
        newest_first = sorted(self._entries, key=lambda entry: age(entry.artifact.version), reverse=True)
        return sorted(newest_first, key=lambda entry: entry.artifact.name)

    def unusable(self) -> Sequence[Unusable]:
        return self._unusable

    def resolve(self, backend: str, version: str = "", *, capability: str = "") -> Artifact | None:
        """Find `name` or `gallery@name`, ignoring case, for a node of this capability; without a version, the newest.

        A meta resolves to its build for the node; `NoBuildForNode` lists the available builds if none fits.
        """
        entry = self.find(backend, version, capability=capability)
        return self._build(entry, version, capability).artifact if entry else None

    def find(self, backend: str, version: str = "", *, capability: str = "") -> Entry | None:
        """Return the entry of that name, else the best one with that alias."""
        if found := _newest(self._named(backend, self._names), version):
            return found
        return _newest(_fitting(self._named(backend, self._aliases), capability), version)

    def concrete_alternative(self, backend: str) -> str | None:
        """Return None for a backend for all nodes. A build for specific hardware has an alternative: its meta, or "".

        The meta is what to request instead, for nodes of all kinds.
        """
        entry = self.find(backend)
        if entry is None or entry.is_meta or family_of(entry.artifact.name) != family_of(backend):
            return None
        if entry.artifact.meta:
            return entry.artifact.meta
        return "" if is_for_some_hardware(entry.artifact) else None

    def family(self, backend: str) -> str:
        """Return the family of a name, from the gallery or else from the name itself."""
        entry = self.find(backend)
        return entry.artifact.family if entry else family_of(backend)

    def _build(self, entry: Entry, version: str, capability: str) -> Entry:
        """Follow metas to a build that can be fetched; an index with cyclic metas is refused earlier."""
        while entry.is_meta:
            name = choose_build(entry.capabilities, capability)
            wanted = version if _has_no_version(entry) else ""
            build = name and _newest(self._named(f"{entry.gallery}@{name}", self._names), wanted)
            if not build:
                raise NoBuildForNode(_no_build_message(entry, name, version, capability), backend=entry.artifact.name)
            entry = build
        return entry

    def _named(self, backend: str, names: dict[str, list[Entry]]) -> list[Entry]:
        gallery = backend.strip().rpartition("@")[0].casefold()
        found = names.get(family_of(backend), [])
        return [entry for entry in found if gallery in {"", entry.gallery.casefold()}]


def age(version: str) -> list[tuple[int, int, str]]:
    """Sort key of versions: 1.9 < 1.10, and 2.0-rc1 < 2.0 < 2.0.1."""
    parts = re.findall(r"\d+|[a-z]+", version.casefold())
    ranked = [(2, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]
    return [*ranked, (1, 0, "")]


def _newest(found: Sequence[Entry], version: str) -> Entry | None:
    """Return that version; without one, the newest that is not broken, from the first gallery."""
    if version:
        return next((entry for entry in found if entry.artifact.version == version or _has_no_version(entry)), None)
    sound = [entry for entry in found if BROKEN not in entry.tags]
    first = [entry for entry in sound if entry.gallery == sound[0].gallery]
    return max(first, key=lambda entry: age(entry.artifact.version), default=None)


def _has_no_version(entry: Entry) -> bool:
    """Return whether a meta has no version of its own: a requested version then means that of its builds."""
    return entry.is_meta and not entry.artifact.version


def _fitting(found: Sequence[Entry], capability: str) -> list[Entry]:
    """Return metas, else the builds that fit the node best."""
    if metas := [entry for entry in found if entry.is_meta]:
        return metas
    fitting = [entry for entry in found if suitability(entry.artifact, capability) is Suitability.COMPATIBLE]
    best = min((preference(entry.artifact, capability) for entry in fitting), default=0)
    return [entry for entry in fitting if preference(entry.artifact, capability) == best]


def _no_build_message(meta: Entry, name: str | None, version: str, capability: str) -> str:
    asked = f"{meta.artifact.name} has no build for {capability or 'a node of unknown hardware'}"
    if name:
        missing = f"{name} {version}".rstrip()
        return f"{asked}: the gallery {meta.gallery} names {missing}, which does not exist there."
    return f"{asked}; available: {', '.join(sorted(meta.capabilities))}."
