"""One tick of the scheduler: the snapshot that it reads, and the plan that it makes of it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from nodesmith.domain.deployment import Deployment
from nodesmith.domain.node import NodeStatus
from nodesmith.domain.placement import Choice, PlacementNode, Refusal, WhyNot
from nodesmith.domain.replica import ENDING, Replica, ReplicaState

LOST_AFTER = timedelta(seconds=10)
"""replicas of an unreachable node count this long"""
WANTED_FOR = timedelta(minutes=1)
"""a router that waits for a replica repeats its request within this time"""
REST_FIRST = timedelta(seconds=30)
REST_LONGEST = timedelta(minutes=15)
NOTHING = -1
"""a drain does not depend on what remains"""
_NAMED = 3


def rest_after(failures: int) -> timedelta:
    """How long a node is not chosen again after this many failed loads of a model there."""
    return min(REST_FIRST * (1 << min(failures - 1, 10)), REST_LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The snapshot of one tick."""

    now: datetime
    nodes: Sequence[PlacementNode]
    deployments: Sequence[Deployment]
    rests: Mapping[str, Mapping[str, datetime]] = field(default_factory=dict)
    """model -> node -> until when loading it there is not tried again"""
    capacity_changed: bool = False
    """something changed that could make room: every model is tried, also an unsatisfiable one"""


class FleetIndex:
    """The same snapshot by key, computed once per tick."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.nodes = {node.id: node for node in fleet.nodes}
        self.deployments = {each.name: each for each in fleet.deployments}
        self.replicas: dict[str, list[Replica]] = defaultdict(list)
        self.healthy: Counter[str] = Counter()
        """model -> loaded replicas on healthy nodes"""
        self.freeing: set[str] = set()
        """nodes on which replicas are on their way out"""
        for node in fleet.nodes:
            for replica in node.replicas:
                self._add(node, replica)

    def _add(self, node: PlacementNode, replica: Replica) -> None:
        self.replicas[replica.model].append(replica)
        if node.status is NodeStatus.HEALTHY and replica.state is ReplicaState.LOADED:
            self.healthy[replica.model] += 1
        if replica.state in ENDING and counts(node, self.fleet.now):
            self.freeing.add(node.id)

    def can_spare(self, model: str) -> bool:
        """Whether an idle replica of this model may be evicted: it is above its minimum, counted on healthy nodes."""
        deployment = self.deployments.get(model)
        if deployment is None:
            return True
        return not deployment.spread_all and self.healthy[model] > deployment.min_replicas


@dataclass(frozen=True, slots=True)
class PlannedPlacement:
    model: str
    choice: Choice
    upto: int
    """settled replicas of the model after this placement: two schedulers at once do not place more"""
    is_per_node: bool = False
    """`upto` counts those of this node only"""


@dataclass(frozen=True, slots=True)
class PlannedDrain:
    replica: Replica
    why: str
    keep: int = NOTHING
    """loaded replicas that must remain: two schedulers at once do not drain more"""


@dataclass(frozen=True, slots=True)
class PlannedEviction:
    """Drain idle replicas of other models on this node until this many bytes are free, the oldest first."""

    model: str
    node_id: str
    missing: int


@dataclass(frozen=True, slots=True)
class Unsatisfied:
    """A model with fewer replicas than it needs: why, and until when no placement is tried."""

    model: str
    ticks: int
    until: datetime | None
    why: str


@dataclass(slots=True)
class Plan:
    """What one tick does. SQL checks each step again, because the snapshot may be outdated."""

    start: list[Replica] = field(default_factory=list)
    """placed by an earlier tick that could not start the load"""
    place: list[PlannedPlacement] = field(default_factory=list)
    evict: list[PlannedEviction] = field(default_factory=list)
    drain: list[PlannedDrain] = field(default_factory=list)
    stop: list[Replica] = field(default_factory=list)
    """being loaded, and no longer wanted"""
    unload: list[Replica] = field(default_factory=list)
    """drained and without calls"""
    forget: list[Replica] = field(default_factory=list)
    """their node stopped all processes when it left"""
    unsatisfied: list[Unsatisfied] = field(default_factory=list)
    satisfied: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    """models whose replicas all have calls, or that routers wait for"""
    again_within: timedelta | None = None
    """when the next tick is needed at the latest, although nothing may change until then"""

    def retire(self, replica: Replica, why: str, *, keep: int = NOTHING) -> None:
        """Give up a replica: stop its load, or drain it."""
        if replica.state is ReplicaState.LOADED:
            self.drain.append(PlannedDrain(replica, why, keep))
        elif replica.state not in ENDING:
            self.stop.append(replica)


def is_wanted(deployment: Deployment, now: datetime) -> bool:
    """Whether a router waits for a replica of this model."""
    return deployment.wanted_at is not None and now - deployment.wanted_at < WANTED_FOR


def counts(node: PlacementNode, now: datetime) -> bool:
    """Whether the replicas of this node count (H11): calls reach it, or it is unreachable since a moment only."""
    if node.is_serving or node.unreachable_since is None:
        return node.is_serving
    return node.status is NodeStatus.UNHEALTHY and now - node.unreachable_since < LOST_AFTER


def last_use(replica: Replica) -> datetime:
    return replica.last_used or replica.loaded_at or replica.created_at


def planned_replica(model: Deployment, choice: Choice, now: datetime) -> Replica:
    """The replica that this choice will become."""
    return Replica(
        id=f"planned:{model.name}:{choice.node_id}:{choice.index}",
        node_id=choice.node_id,
        model=model.name,
        index=choice.index,
        revision=model.revision,
        state=ReplicaState.PLACING,
        op_id="",
        reserved=model.spec.memory,
        created_at=now,
        changed_at=now,
    )


def missing_words(present: int, wanted: int, refusals: Sequence[Refusal]) -> str:
    """Say how many replicas are missing, and why the nodes do not fit: each reason with up to three nodes."""
    if not refusals:
        return f"{present} of {wanted} replicas: no node is registered."
    by_reason: dict[WhyNot, list[Refusal]] = defaultdict(list)
    for refusal in refusals:
        by_reason[refusal.why].append(refusal)
    parts = [_reason_words(by_reason[why]) for why in WhyNot if why in by_reason]
    return f"{present} of {wanted} replicas: {'; '.join(parts)}."


def _reason_words(refusals: Sequence[Refusal]) -> str:
    named = ", ".join(each.node_name for each in refusals[:_NAMED])
    more = f" and {len(refusals) - _NAMED} more" if len(refusals) > _NAMED else ""
    return f"{named}{more}: {refusals[0].words}"
