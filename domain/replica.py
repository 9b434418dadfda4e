"""Replicas: one running copy of a model on a node, from the decision to place it until its process has ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import auto

from nodesmith.domain.wire_enum import WireEnum


class ReplicaState(WireEnum):
    PLACING = auto()
    """the node is chosen and the memory is reserved; the operation has not started yet"""
    LOADING = auto()
    """an operation loads it on the node"""
    LOADED = auto()
    """ready; the only state in which it gets calls"""
    DRAINING = auto()
    """gets no new calls; the open ones finish"""
    UNLOADING = auto()
    """an operation ends its process"""
    UNKNOWN = auto()


STARTING = frozenset({ReplicaState.PLACING, ReplicaState.LOADING})
"""will get calls later"""
ENDING = frozenset({ReplicaState.DRAINING, ReplicaState.UNLOADING})
"""gets no more calls"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One row in any state occupies a slot of its node and reserves memory there."""

    id: str
    node_id: str
    model: str
    index: int
    """lowest free number of this model on the node"""
    revision: int
    """of the load specification that it runs"""
    state: ReplicaState
    address: str = ""
    """where its node accepts calls; empty until it is loaded"""
    op_id: str
    """the operation that loads it or, from `unloading` on, the one that unloads it"""
    reserved: int = 0
    """bytes of the node's memory"""
    loaded_at: datetime | None = None
    in_flight: int = 0
    """open calls, counted by all routers together"""
    last_used: datetime | None = None
    node_seq: int = 0
    """number of the node's report that named it loaded"""
    boot_id: str = ""
    """process of the agent that reported it loaded"""
    created_at: datetime
    changed_at: datetime
    """of the state"""
    is_reachable: bool = True
    """calls reach its node; only where a reader asked for it"""

    @property
    def key(self) -> str:
        return process_key(self.model, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedReplica:
    """A loaded replica as the agent reports it."""

    model: str
    index: int
    revision: int = 0
    address: str = ""
    op_id: str = ""
    """the load that started it"""


ReportedReplicas = Sequence[ReportedReplica]


def process_key(model: str, index: int) -> str:
    """Name of a replica's process on its node."""
    return f"{model}#{index}"
