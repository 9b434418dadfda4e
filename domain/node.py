"""The node: facts are stored, the status is derived from them."""

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta

from domain.wire import WireEnum

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
    """our own agent: accepted within 5 s, outcome on its own subject, cancel and op"""


@dataclass(frozen=True)
class NodeFacts:
    """What the registry knows of a node; nothing here is a status."""

    approved_at: datetime | None = None
    drained_at: datetime | None = None
    leaving_at: datetime | None = None
    left_at: datetime | None = None
    last_heartbeat: datetime | None = None
    unreachable_since: datetime | None = None


def status_of(
    facts: NodeFacts, *, now: datetime, listening_since: datetime, listened_until: datetime | None = None
) -> NodeStatus:
    """Derive the status; `store.nodes` has the same expression in SQL, proved equal by a test.

    The control plane listened from `listening_since` to `listened_until` (None: it listens now).
    Silence before and after that proves nothing.
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


@dataclass(frozen=True)
class HeardNode:
    """A node that was heard, as the registry knows it."""

    node_id: str
    boot_id: str
    """the process that registered as this node"""
    is_approved: bool


@dataclass(frozen=True)
class NatsCredential:
    """What a node needs to speak on the bus, for itself only."""

    jwt: str
    seed: str
    expires_at: datetime
    user: str = ""
    """its public key, by which it is revoked"""
