"""What is installed over the whole fleet."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FleetBuild:
    """One version of a backend, by its digest, and its number of nodes."""

    version: str
    digest: str
    nodes: int


@dataclass(frozen=True, kw_only=True)
class DifferingNode:
    """A node with a different build than most nodes."""

    node_id: str
    node_name: str
    version: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class FleetBackend:
    """One backend over the fleet. More than one build is drift."""

    family: str
    name: str
    builds: Sequence[FleetBuild]
    """the build that most nodes have comes first"""
    differing: Sequence[DifferingNode] = ()

    @property
    def nodes(self) -> int:
        return sum(build.nodes for build in self.builds)
