"""The catalogue: which backends there are, and which artifact a name stands for."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import yaml

from contracts.http import BackendEntry
from domain.artifact import Artifact
from domain.identity import family_of

BROKEN = "broken"
"""A version with this tag is installed only when it is asked for by its name."""


@dataclass(frozen=True)
class Entry:
    """One version of one backend in one gallery."""

    gallery: str
    artifact: Artifact
    tags: frozenset[str] = field(default_factory=frozenset)


class Catalogue:
    """The entries of all galleries; those named first win."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = list(entries)

    def entries(self) -> list[BackendEntry]:
        """What there is, by name and then newest first."""
        newest_first = sorted(self._entries, key=lambda entry: _age(entry.artifact.version), reverse=True)
        return [_view(entry) for entry in sorted(newest_first, key=lambda entry: entry.artifact.name)]

    def resolve(self, backend: str, version: str = "") -> Artifact | None:
        """Find `name` or `gallery@name`, in any case; without a version, the newest that is not broken."""
        found = self._named(backend)
        if version:
            return next((entry.artifact for entry in found if entry.artifact.version == version), None)
        sound = [entry.artifact for entry in found if BROKEN not in entry.tags]
        return max(sound, key=lambda artifact: _age(artifact.version), default=None)

    def _named(self, backend: str) -> list[Entry]:
        gallery, _, _ = backend.strip().rpartition("@")
        family = family_of(backend)
        return [
            entry
            for entry in self._entries
            if family_of(entry.artifact.name) == family and gallery.casefold() in {"", entry.gallery.casefold()}
        ]


def read_index(text: str, *, gallery: str) -> list[Entry]:
    """Read an index in LocalAI's format: a YAML list, one object a backend; other keys are ignored."""
    listed = yaml.safe_load(text)
    if not isinstance(listed, list):
        raise TypeError(f"The index of gallery {gallery} is not a list.")
    return [_entry(fields, gallery) for fields in listed]


def _entry(fields: dict[str, object], gallery: str) -> Entry:
    known = BackendEntry.model_validate({"version": "", **fields, "gallery": gallery})
    tags = fields.get("tags")
    return Entry(
        gallery=gallery,
        artifact=Artifact(
            name=known.name,
            version=known.version,
            uri=known.uri,
            sha256=known.sha256,
            size=known.size,
            description=known.description,
        ),
        tags=frozenset(map(str, tags)) if isinstance(tags, list) else frozenset(),
    )


def _view(entry: Entry) -> BackendEntry:
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


def _age(version: str) -> list[tuple[int, int, str]]:
    """Order versions as people read them: 1.9 < 1.10, and 2.0-rc1 < 2.0 < 2.0.1."""
    parts = re.findall(r"\d+|[a-z]+", version.casefold())
    ranked = [(2, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]
    return [*ranked, (1, 0, "")]
