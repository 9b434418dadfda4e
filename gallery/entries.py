"""What a gallery lists: builds, metas that stand for one build per kind of hardware, and what cannot be used."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.artifact import Artifact

BROKEN = "broken"
"""A version with this tag is installed only when it is asked for by its name."""
DEVELOPMENT = "-development"
"""How the name of a development variant ends."""


@dataclass(frozen=True)
class Entry:
    """One version of one backend in one gallery."""

    gallery: str
    artifact: Artifact
    tags: frozenset[str] = field(default_factory=frozenset)
    capabilities: Mapping[str, str] = field(default_factory=dict)
    """capability of a node -> name of the build for it; builds inherit it from their meta and do not use it"""
    alias: str = ""
    license: str = ""
    icon: str = ""
    urls: tuple[str, ...] = ()
    notes: str = ""

    @property
    def is_meta(self) -> bool:
        return bool(self.capabilities) and not self.artifact.uri

    @property
    def is_development(self) -> bool:
        return self.artifact.name.casefold().endswith(DEVELOPMENT)


@dataclass(frozen=True)
class Unusable:
    """An entry that nobody can install, and why; the others are not touched by it."""

    gallery: str
    name: str
    reason: str
    line: int = 0
    """where it begins in the index; 0 when that is not known"""


@dataclass(frozen=True)
class Index:
    """One gallery, read."""

    entries: list[Entry]
    unusable: list[Unusable] = field(default_factory=list)
