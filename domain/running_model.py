"""Running models: what a node reports, and what became of an unload."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import auto

from nodesmith.domain.wire_enum import WireEnum


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that runs on a node, as the node reported it."""

    node_id: str
    node_name: str
    name: str
    replica: int
    address: str
    """as seen on the node"""
    backend: str
    version: str
    """version of the backend"""
    reported_at: datetime

    @property
    def process_key(self) -> str:
        return f"{self.name}#{self.replica}"


class UnloadResult(WireEnum):
    """What happened to a model on a node."""

    UNLOADED = auto()
    FAILED = auto()
    """it runs there and could not be unloaded"""
    AWAY = auto()
    """the node is unreachable"""
    UNKNOWN = auto()
    """the node did not report what runs there"""


@dataclass(frozen=True, kw_only=True)
class UnloadedNode:
    """A node that has a model, or may have it, and what became of its unload."""

    node_id: str
    node_name: str
    result: UnloadResult
    replicas: int = 0
    """the replicas that were unloaded"""
    warning: str = ""
    """why it failed, or is not known"""


@dataclass(frozen=True)
class Unloaded:
    """The unload of a model on many nodes; nodes without the model are omitted."""

    model: str
    nodes: Sequence[UnloadedNode]

    def named(self, *results: UnloadResult) -> list[str]:
        return [node.node_name for node in self.nodes if node.result in results]
