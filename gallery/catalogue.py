"""The catalogue: which backends there are, and which artifact a name stands for on a node."""

import re
from collections.abc import Iterable, Sequence

from contracts.galleries import BackendEntry
from domain.artifact import Artifact
from domain.errors import NoBuildForNode
from domain.identity import family_of
from gallery.entries import BROKEN, Entry, Unusable
from gallery.metas import chosen, families
from gallery.suitability import Suitability, is_for_some_hardware, preference, suitability


class Catalogue:
    """The entries of all galleries; those named first win. What it holds is exchanged as a whole."""

    def __init__(self, entries: Iterable[Entry], unusable: Iterable[Unusable] = ()) -> None:
        self.replace(entries, unusable)

    def replace(self, entries: Iterable[Entry], unusable: Iterable[Unusable] = ()) -> None:
        """Hold these from now on."""
        held = [entry if entry.artifact.family else families([entry])[0] for entry in entries]
        names: dict[str, list[Entry]] = {}
        aliases: dict[str, list[Entry]] = {}
        for entry in held:
            names.setdefault(family_of(entry.artifact.name), []).append(entry)
            if entry.alias:
                aliases.setdefault(family_of(entry.alias), []).append(entry)
        self._entries, self._unusable, self._names, self._aliases = held, list(unusable), names, aliases

    def listed(self) -> Sequence[Entry]:
        """What there is, by name and then newest first."""
        newest_first = sorted(self._entries, key=lambda entry: age(entry.artifact.version), reverse=True)
        return sorted(newest_first, key=lambda entry: entry.artifact.name)

    def entries(self) -> list[BackendEntry]:
        return [view(entry) for entry in self.listed()]

    def unusable(self) -> Sequence[Unusable]:
        return self._unusable

    def resolve(self, backend: str, version: str = "", *, capability: str = "") -> Artifact | None:
        """Find `name` or `gallery@name`, in any case, for a node of this capability; without a version, the newest.

        A meta leads to its build for the node; `NoBuildForNode` names what there is when there is none.
        """
        entry = self.find(backend, version, capability=capability)
        return self._build(entry, version, capability).artifact if entry else None

    def find(self, backend: str, version: str = "", *, capability: str = "") -> Entry | None:
        """The entry of that name, else the best of that alias."""
        if found := _newest(self._called(backend, self._names), version):
            return found
        return _newest(_fitting(self._called(backend, self._aliases), capability), version)

    def concrete_alternative(self, backend: str) -> str | None:
        """None when everybody may have this backend. Else it is one build for some hardware: its meta, or "".

        The meta is what to ask for instead, for nodes of all kinds.
        """
        entry = self.find(backend)
        if entry is None or entry.is_meta or family_of(entry.artifact.name) != family_of(backend):
            return None
        if entry.artifact.meta:
            return entry.artifact.meta
        return "" if is_for_some_hardware(entry.artifact) else None

    def family(self, backend: str) -> str:
        """The family of a name: what the gallery says, else what the name itself says."""
        entry = self.find(backend)
        return entry.artifact.family if entry else family_of(backend)

    def _build(self, entry: Entry, version: str, capability: str) -> Entry:
        """Follow metas to what can be fetched; an index with metas that lead in a circle is not taken in."""
        while entry.is_meta:
            name = chosen(entry.capabilities, capability)
            wanted = version if _takes_any(entry) else ""
            build = name and _newest(self._called(f"{entry.gallery}@{name}", self._names), wanted)
            if not build:
                raise NoBuildForNode(_what_there_is(entry, name, version, capability), backend=entry.artifact.name)
            entry = build
        return entry

    def _called(self, backend: str, names: dict[str, list[Entry]]) -> list[Entry]:
        gallery = backend.strip().rpartition("@")[0].casefold()
        found = names.get(family_of(backend), [])
        return [entry for entry in found if gallery in {"", entry.gallery.casefold()}]


def view(entry: Entry) -> BackendEntry:
    artifact = entry.artifact
    return BackendEntry(
        name=artifact.name,
        version=artifact.version,
        description=artifact.description,
        uri=artifact.uri,
        sha256=artifact.sha256,
        size=artifact.size,
        gallery=entry.gallery,
    )


def age(version: str) -> list[tuple[int, int, str]]:
    """Order versions as people read them: 1.9 < 1.10, and 2.0-rc1 < 2.0 < 2.0.1."""
    parts = re.findall(r"\d+|[a-z]+", version.casefold())
    ranked = [(2, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]
    return [*ranked, (1, 0, "")]


def _newest(found: Sequence[Entry], version: str) -> Entry | None:
    """The one of that version; without one, the newest that is not broken, in the gallery that comes first."""
    if version:
        return next((entry for entry in found if entry.artifact.version == version or _takes_any(entry)), None)
    sound = [entry for entry in found if BROKEN not in entry.tags]
    first = [entry for entry in sound if entry.gallery == sound[0].gallery]
    return max(first, key=lambda entry: age(entry.artifact.version), default=None)


def _takes_any(entry: Entry) -> bool:
    """A meta without a version of its own is asked for the version of its builds."""
    return entry.is_meta and not entry.artifact.version


def _fitting(found: Sequence[Entry], capability: str) -> list[Entry]:
    """Metas first, then the builds that fit the node, the best first; only the best kind is left."""
    if metas := [entry for entry in found if entry.is_meta]:
        return metas
    fitting = [entry for entry in found if suitability(entry.artifact, capability) is Suitability.COMPATIBLE]
    best = min((preference(entry.artifact, capability) for entry in fitting), default=0)
    return [entry for entry in fitting if preference(entry.artifact, capability) == best]


def _what_there_is(meta: Entry, name: str | None, version: str, capability: str) -> str:
    asked = f"{meta.artifact.name} has no build for {capability or 'a node of unknown hardware'}"
    if name:
        missing = f"{name} {version}".rstrip()
        return f"{asked}: the gallery {meta.gallery} names {missing}, which it does not have."
    return f"{asked}; there is one for {', '.join(sorted(meta.capabilities))}."
