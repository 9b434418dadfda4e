"""Entries of a gallery: builds, metas (one build per kind of hardware), and unusable entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodesmith.domain.artifact import Artifact

BROKEN = "broken"
"""A version with this tag is installed only if it is requested explicitly."""
DEVELOPMENT = "-development"
"""Suffix of the names of development variants."""


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
    """An entry that cannot be installed, and why; it does not affect the others."""

    gallery: str
    name: str
    reason: str
    line: int = 0
    """its first line in the index; 0 if unknown"""


@dataclass(frozen=True)
class Index:
    """The parsed index of one gallery."""

    entries: list[Entry]
    unusable: list[Unusable] = field(default_factory=list)
