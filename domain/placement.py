"""Placement: which node gets the next replica of a model, and why each other node does not.

`nodesmith.store.models.placing` tests slot, memory, selector and status again in SQL; a test compares both.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from nodesmith.domain.deployment import GIB, LoadSpec
from nodesmith.domain.identity import family_of
from nodesmith.domain.node import Node, NodeStatus, Protocol
from nodesmith.domain.replica import Replica
from nodesmith.domain.selector import Selector

SEEN_AFTER = timedelta(seconds=15)
"""a reading of the node shows the memory of a replica that was loaded this long before it"""
DISK_SHARE = 0.05
DISK_MARGIN = GIB
DISK_IF_UNKNOWN = 2 * GIB
NO_RESTS: Mapping[str, datetime] = {}


class WhyNot(enum.StrEnum):
    """Why a node does not get the replica, in the order of the tests."""

    NO_MATCH = "no_match"
    NO_BACKENDS = "no_backends"
    LOCALAI_WORKER = "localai_worker"
    NOT_APPROVED = "not_approved"
    NOT_HEALTHY = "not_healthy"
    RESTING = "resting"
    DISK = "disk"
    NO_SLOT = "no_slot"
    MEMORY = "memory"
    NOT_PREFERRED = "not_preferred"


@dataclass(slots=True, kw_only=True)
class PlacementNode:
    """A node in the snapshot of the scheduler; `add` counts a replica that is planned in the same tick."""

    id: str
    name: str
    status: NodeStatus
    unreachable_since: datetime | None = None
    is_serving: bool = True
    """calls reach it: it is healthy, or would be if nobody drained it"""
    has_left: bool = False
    runs_backends: bool = True
    protocol: Protocol = Protocol.NODESMITH
    labels: Mapping[str, str] = field(default_factory=dict)
    slots: int = 1
    """replicas of one model"""
    budget: int | None = None
    """bytes for all replicas together; None: unknown"""
    available: int | None = None
    """bytes that were free in the last reading"""
    resources_at: datetime | None = None
    disk_total: int | None = None
    disk_available: int | None = None
    families: frozenset[str] = frozenset()
    """installed backends"""
    digests: frozenset[str] = frozenset()
    """files of the models that it has"""
    replicas: list[Replica] = field(default_factory=list)
    held: int = 0
    """bytes reserved by its replicas in any state"""
    unseen: int = 0
    """the part of `held` that the last reading does not show yet"""
    in_flight: int = 0
    _indices: dict[str, set[int]] = field(default_factory=dict)
    """model -> occupied numbers"""

    def __post_init__(self) -> None:
        for replica in self.replicas:
            self._count(replica)

    def add(self, replica: Replica) -> None:
        self.replicas.append(replica)
        self._count(replica)

    def _count(self, replica: Replica) -> None:
        self._indices.setdefault(replica.model, set()).add(replica.index)
        self.held += replica.reserved
        self.in_flight += replica.in_flight
        if is_unseen(replica.loaded_at, self.resources_at):
            self.unseen += replica.reserved

    @property
    def free(self) -> int | None:
        """Bytes for further replicas; None: the node does not report its memory."""
        within_budget = None if self.budget is None else self.budget - self.held
        if self.available is None:
            return within_budget
        unused = self.available - self.unseen
        return unused if within_budget is None else min(within_budget, unused)

    def free_index(self, model: str) -> int | None:
        """The lowest free number of this model; None if all slots are occupied."""
        taken = self._indices.get(model, ())
        return next((index for index in range(self.slots) if index not in taken), None)

    def count(self, model: str) -> int:
        return len(self._indices.get(model, ()))


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Memory for models: that of all GPUs together, else RAM."""

    budget: int | None
    available: int | None


def memory_of(node: Node) -> NodeMemory:
    return node_memory(
        total_vram=node.total_vram,
        vram_ceiling=node.vram_budget_bytes,
        available_vram=node.available_vram,
        total_ram=node.total_ram,
        available_ram=node.available_ram,
    )


def node_memory(
    *,
    total_vram: int | None,
    vram_ceiling: int | None,
    available_vram: int | None,
    total_ram: int | None,
    available_ram: int | None,
) -> NodeMemory:
    if total_vram:
        return NodeMemory(total_vram if vram_ceiling is None else vram_ceiling, available_vram)
    return NodeMemory(total_ram, available_ram)


def is_unseen(loaded_at: datetime | None, resources_at: datetime | None) -> bool:
    """Whether the node's last reading may not include a replica that was loaded at that time."""
    return loaded_at is None or resources_at is None or loaded_at > resources_at - SEEN_AFTER


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one node does not get the replica."""

    node_id: str
    node_name: str
    why: WhyNot
    detail: str = ""

    @property
    def words(self) -> str:
        return f"{_WORDS[self.why]}{f': {self.detail}' if self.detail else ''}"


_WORDS = {
    WhyNot.NO_MATCH: "its labels do not match the selector",
    WhyNot.NO_BACKENDS: "it runs no backends",
    WhyNot.LOCALAI_WORKER: "it is a LocalAI worker, which loads its models itself",
    WhyNot.NOT_APPROVED: "it waits for approval",
    WhyNot.NOT_HEALTHY: "it is not healthy",
    WhyNot.RESTING: "loading this model failed there",
    WhyNot.DISK: "its disk is too full",
    WhyNot.NO_SLOT: "it has as many replicas of this model as it may have",
    WhyNot.MEMORY: "it has too little free memory",
    WhyNot.NOT_PREFERRED: "it would fit, another node was preferred",
}


@dataclass(frozen=True, slots=True)
class Choice:
    node_id: str
    node_name: str
    index: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """The answer for one replica: the chosen node, and the refusal of every other node."""

    choice: Choice | None
    refusals: Sequence[Refusal]


def place(
    spec: LoadSpec,
    selector: Selector,
    nodes: Iterable[PlacementNode],
    *,
    now: datetime,
    resting: Mapping[str, datetime] = NO_RESTS,
    explain: bool = True,
) -> Placement:
    """Choose the node of the next replica. `resting`: nodes where the load failed, by id, and until when they rest.

    Without `explain` the other nodes are named only if none fits.
    """
    fitting: list[PlacementNode] = []
    refusals: list[Refusal] = []
    for node in nodes:
        refusal = refusal_of(spec, selector, node, now=now, rests_until=resting.get(node.id))
        if refusal is None:
            fitting.append(node)
        else:
            refusals.append(refusal)
    if not fitting:
        return Placement(None, refusals)
    best = min(fitting, key=_preference(spec))
    if explain:
        others = (node for node in fitting if node.id != best.id)
        refusals += [Refusal(node.id, node.name, WhyNot.NOT_PREFERRED, best.name) for node in others]
    index = best.free_index(spec.model)
    return Placement(Choice(best.id, best.name, index or 0, _advantage(spec, best)), refusals)


def refusal_of(
    spec: LoadSpec, selector: Selector, node: PlacementNode, *, now: datetime, rests_until: datetime | None = None
) -> Refusal | None:
    """Return why this node cannot get a replica; None if it can."""
    found = _unfit(selector, node) or _resting(rests_until, now) or _lacking(spec, node)
    return Refusal(node.id, node.name, *found) if found else None


_Reason = tuple[WhyNot, str]


def _unfit(selector: Selector, node: PlacementNode) -> _Reason | None:
    if not selector.matches(node.labels):
        return WhyNot.NO_MATCH, ""
    if not node.runs_backends:
        return WhyNot.NO_BACKENDS, ""
    if node.protocol is Protocol.LOCALAI:
        return WhyNot.LOCALAI_WORKER, ""
    if node.status is NodeStatus.PENDING:
        return WhyNot.NOT_APPROVED, ""
    return None if node.status is NodeStatus.HEALTHY else (WhyNot.NOT_HEALTHY, f"it is {node.status}")


def _resting(rests_until: datetime | None, now: datetime) -> _Reason | None:
    if rests_until is None or rests_until <= now:
        return None
    return WhyNot.RESTING, f"it is tried again at {rests_until:%H:%M:%S} UTC"


def _lacking(spec: LoadSpec, node: PlacementNode) -> _Reason | None:
    """What the node has too little of."""
    if (missing := _missing_disk(spec, node)) > 0:
        return WhyNot.DISK, f"{size_words(missing)} more are needed"
    if node.free_index(spec.model) is None:
        return WhyNot.NO_SLOT, f"{node.slots}"
    if spec.memory and (node.free is None or node.free < spec.memory):
        return WhyNot.MEMORY, _memory_words(spec, node)
    return None


def disk_need(spec: LoadSpec) -> int:
    """Bytes that must be free before the files are downloaded."""
    if not spec.files:
        return 0
    return spec.size + max(int(spec.size * DISK_SHARE), DISK_MARGIN) if spec.size else DISK_IF_UNKNOWN


def size_words(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"


def _missing_disk(spec: LoadSpec, node: PlacementNode) -> int:
    """Bytes that are missing on the disk; 0 if it reports none or has the files already."""
    if not node.disk_total or node.disk_available is None or spec.digests <= node.digests:
        return 0
    return disk_need(spec) - node.disk_available


def _memory_words(spec: LoadSpec, node: PlacementNode) -> str:
    if node.free is None:
        return f"{size_words(spec.memory)} are needed, and it does not report its memory"
    return f"{size_words(spec.memory)} are needed, {size_words(max(node.free, 0))} are free"


def _preference(spec: LoadSpec) -> Callable[[PlacementNode], tuple[object, ...]]:
    """The order of the nodes that fit; the least comes first.

    A node without this model comes first, so that the loss of one node does not take all replicas.
    """
    family = family_of(spec.backend)

    def key(node: PlacementNode) -> tuple[object, ...]:
        prepared = (family in node.families) + (spec.digests <= node.digests)
        free = node.free or 0
        return (
            node.count(spec.model),
            -prepared,
            bool(node.replicas),
            node.in_flight,
            len(node.replicas),
            -free,
            node.id,
        )

    return key


def _advantage(spec: LoadSpec, node: PlacementNode) -> str:
    """Why this node was preferred."""
    if family_of(spec.backend) in node.families and spec.digests <= node.digests:
        return "it has the backend and the files already"
    if family_of(spec.backend) in node.families:
        return "it has the backend already"
    return "it is idle" if not node.replicas else "it has the least load"
