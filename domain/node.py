"""Nodes: facts are stored, and the status is derived from them."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from nodesmith.domain.wire_enum import WireEnum

SILENT_AFTER = timedelta(seconds=60)


class NodeType(WireEnum):
    BACKEND = "backend"
    AGENT = "agent"
    UNKNOWN = "unknown"


class NodeStatus(WireEnum):
    PENDING = "pending"
    DRAINING = "draining"
    OFFLINE = "offline"
    UNHEALTHY = "unhealthy"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Protocol(enum.IntEnum):
    LOCALAI = 1
    """a LocalAI worker: one long request, no cancel"""
    NODESMITH = 2
    """a Nodesmith agent: accepts within 5 s, reports the outcome on its own subject, supports cancel and op"""


@dataclass(frozen=True)
class NodeFacts:
    """Stored facts of a node, from which `status_of` derives the status."""

    approved_at: datetime | None = None
    drained_at: datetime | None = None
    leaving_at: datetime | None = None
    left_at: datetime | None = None
    last_heartbeat: datetime | None = None
    unreachable_since: datetime | None = None


def status_of(
    facts: NodeFacts, *, now: datetime, listening_since: datetime, listened_until: datetime | None = None
) -> NodeStatus:
    """Derive the status. `nodesmith.store.nodes.nodes` has the same expression in SQL; a test compares both.

    The control plane listened from `listening_since` to `listened_until` (None: it listens now).
    Silence outside that time does not count.
    """
    until = now if listened_until is None else min(now, listened_until)
    if facts.approved_at is None:
        return NodeStatus.PENDING
    if facts.drained_at is not None or (facts.leaving_at is not None and facts.left_at is None):
        return NodeStatus.DRAINING
    if facts.left_at is not None or facts.last_heartbeat is None:
        return NodeStatus.OFFLINE
    if until - max(facts.last_heartbeat, listening_since) > SILENT_AFTER:
        return NodeStatus.OFFLINE
    if facts.unreachable_since is not None:
        return NodeStatus.UNHEALTHY
    return NodeStatus.HEALTHY


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfinement:
    """How the backends of a node are confined, as its agent determined at start-up."""

    mode: str = ""
    landlock_abi: int = 0
    user: str = ""
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine in the registry; `status` is derived when the node is read. None: the node did not report it."""

    id: str
    name: str
    node_type: NodeType
    protocol: Protocol
    address: str = ""
    http_address: str = ""
    max_replicas_per_model: int = 1
    max_replicas_per_model_manually_set: bool = False
    vram_budget: str = ""
    vram_budget_bytes: int | None = None
    """the budget in bytes on this card; `available_vram` is its unused part"""
    vram_budget_manually_set: bool = False
    total_vram: int | None = None
    available_vram: int | None = None
    total_ram: int | None = None
    available_ram: int | None = None
    total_disk: int | None = None
    available_disk: int | None = None
    gpu_vendor: str | None = None
    gpu_compute_capability: str | None = None
    capability: str | None = None
    confinement: NodeConfinement | None = None
    resources_at: datetime | None = None
    """when the node last reported memory and disk"""
    status: NodeStatus
    approved_at: datetime | None = None
    drained_at: datetime | None = None
    leaving_at: datetime | None = None
    """the node itself is about to leave; an admin's drain is `drained_at`"""
    left_at: datetime | None = None
    unreachable_since: datetime | None = None
    rival_seen_at: datetime | None = None
    """when a second process last tried to register as this node; it was refused"""
    last_heartbeat: datetime | None = None
    boot_id: str = ""
    boot_at: datetime | None = None
    """when the current process of the node first registered"""
    agent_version: str = ""
    trust_version: int = 0
    """version of the trust list in the last heartbeat; 0: not reported"""
    labels: Mapping[str, str] = field(default_factory=dict)
    open_operations: int = 0
    model_count: int = 0
    """loaded replicas"""
    in_flight_count: int = 0
    """open calls of its replicas"""
    reserved_memory: int = 0
    """bytes that its replicas hold: of GPU memory, else of RAM"""
    reserved_vram: int = 0
    """the part of it that `available_vram` does not show yet"""
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class ReportingNode:
    """A registered node that sent a heartbeat."""

    node_id: str
    boot_id: str
    """the process that registered as this node"""
    is_approved: bool
    beat_at: datetime | None = None
    """time of its last heartbeat, by its own clock"""


@dataclass(frozen=True)
class NodeKey:
    """The key that verifies a node's reports; a LocalAI worker has none."""

    protocol: Protocol
    public: str


@dataclass(frozen=True)
class NatsCredential:
    """The NATS credential of one node."""

    jwt: str
    seed: str
    """empty when the node created its own key: then only the node has the seed"""
    expires_at: datetime
    user: str = ""
    """its public key, used to revoke it"""
