"""Batches: many nodes, one intent. Temporal names and inputs, and what the API says of them."""

from datetime import datetime
from enum import auto

from pydantic import Field

from contracts.http import InstallRequest, Shape
from contracts.temporal import Payload, Policy, Wanted
from domain.identity import derived_op_id
from domain.node import Protocol
from domain.operation import Kind, Reason, State
from domain.wire import WireEnum

BATCH = "Batch"
SIGNAL_PAUSE = "pause"
SIGNAL_RESUME = "resume"
SIGNAL_CANCEL = "cancel"
QUERY_PROGRESS = "progress"

OPEN_BATCH = "open_batch"
ADMIT_MEMBERS = "admit_members"
WATCH_MEMBERS = "watch_members"
CANCEL_MEMBERS = "cancel_members"
CLOSE_BATCH = "close_batch"

MOST_TARGETS = 10_000


def batch_workflow_id(batch_id: str) -> str:
    return f"batch:{batch_id}"  # batch:{batch_id}


def member_op_id(batch_id: str, node_id: str) -> str:
    """Known before the operation is: a batch that is asked twice asks for the same operations."""
    return derived_op_id(batch_id, node_id)


class BatchState(WireEnum):
    RUNNING = auto()
    PAUSED = auto()
    CANCELLING = auto()
    COMPLETED = auto()
    """every member has its result; some may have failed"""
    STOPPED = auto()
    """too many failures: the rest was not started"""
    CANCELLED = auto()
    UNKNOWN = auto()


ENDED_BATCHES = frozenset({BatchState.COMPLETED, BatchState.STOPPED, BatchState.CANCELLED})


class Verdict(WireEnum):
    """What became of a member that has no operation of this batch to tell it."""

    SKIPPED = auto()
    CONFLICT = auto()
    REFUSED = auto()
    NOT_STARTED = auto()
    NOTHING_TO_DO = auto()
    UNKNOWN = auto()


class Target(Payload):
    """One node of a batch, frozen when the batch was asked for."""

    node_id: str
    node_name: str
    protocol: Protocol = Protocol.NODESMITH


class Member(Payload):
    """A node that has a verdict instead of an operation, or another operation than planned."""

    node_id: str
    node_name: str
    op_id: str | None = None
    joined: bool = False
    verdict: Verdict | None = None
    detail: str = ""


class BatchCarried(Payload):
    """What one run hands to the next."""

    waiting: tuple[Target, ...]
    open_ops: dict[str, Target] = Field(default_factory=dict)
    joined: tuple[str, ...] = ()
    failures: int = 0
    paused: bool = False
    cancelled_by: str | None = None


class BatchInput(Payload):
    batch_id: str
    wanted: Wanted
    """version and digest pinned once, for all"""
    targets: tuple[Target, ...]
    left_out: tuple[Member, ...] = ()
    """skipped when it was asked for, each with its reason"""
    max_parallel: int = 20
    """0 = all at once"""
    max_failures: int | None = None
    policy: Policy = Policy()
    requested_by: str = ""
    note: str = ""
    retry_of: str | None = None
    created_at: datetime
    on_drained: bool = False
    carried: BatchCarried | None = None


class BatchOrder(Payload):
    """Signals `pause`, `resume` and `cancel`."""

    by: str = ""


class AdmitMembers(Payload):
    batch: BatchInput
    targets: tuple[Target, ...]


class Admitted(Payload):
    """One member after admission: an open operation, ours or joined, or a verdict."""

    members: tuple[Member, ...]


class WatchMembers(Payload):
    """Return when one of these ends, or when the set of those that wait for their node changes."""

    batch_id: str
    op_ids: tuple[str, ...]
    away: tuple[str, ...] = ()


class Watched(Payload):
    ended: dict[str, State] = Field(default_factory=dict)
    away: tuple[str, ...] = ()


class CancelMembers(Payload):
    op_ids: tuple[str, ...]
    by: str = ""
    why: Reason = Reason.REQUESTED
    detail: str = ""


class CloseBatch(Payload):
    """The state of the batch, and members that got a verdict with it."""

    batch_id: str
    state: BatchState
    detail: str = ""
    at: datetime
    members: tuple[Member, ...] = ()


class BatchProgress(Payload):
    """Answer to the query `progress`, and the result of the run."""

    batch_id: str
    state: BatchState
    waiting: int = 0
    running: int = 0
    ended: int = 0
    failures: int = 0


# HTTP ---------------------------------------------------------------------------------------------------------


class BatchRequest(InstallRequest):
    """`POST /api/batches`: what, and where: `nodes`, `selector` or `everywhere`."""

    kind: Kind = Kind.INSTALL
    nodes: list[str] = Field(default_factory=list, max_length=MOST_TARGETS)
    selector: str = Field(default="", max_length=2000)
    everywhere: bool = False
    max_parallel: int = Field(default=20, ge=0, le=MOST_TARGETS)
    max_failures: int | None = Field(default=None, ge=1, le=MOST_TARGETS)
    dry_run: bool = False


class PlannedMember(Shape):
    """One node of a plan: what would be done there, and what it would cost."""

    node_id: str
    node_name: str
    action: str
    """install, upgrade, rollback, remove, nothing, skip"""
    reason: str = ""
    current_version: str = ""
    bytes: int = 0
    free_disk: int | None = None
    suitable: bool = True
    outage: str = ""
    op_id: str | None = None


class BatchPlan(Shape):
    backend: str
    version: str = ""
    sha256: str = ""
    members: list[PlannedMember]
    targets: int
    skipped: int


class BatchAccepted(Shape):
    """202: the batch is durable from here on."""

    batch_id: str
    jobID: str  # noqa: N815 - LocalAI's name
    statusUrl: str  # noqa: N815
    message: str
    jobs: dict[str, str]
    """node name -> operation id, known before it starts"""
    skipped: dict[str, str] = Field(default_factory=dict)
    """node name -> why"""


class MemberView(Shape):
    node_id: str
    node_name: str
    op_id: str | None = None
    joined: bool = False
    state: str
    """the state of its operation, or its verdict, or `waiting_for_turn`"""
    reason: Reason | None = None
    detail: str = ""
    percentage: float = 0.0


class BatchView(Shape):
    batch_id: str
    kind: Kind
    backend: str
    family: str
    version: str = ""
    state: BatchState
    detail: str = ""
    max_parallel: int
    max_failures: int | None = None
    requested_by: str = ""
    note: str = ""
    retry_of: str | None = None
    created_at: datetime
    ended_at: datetime | None = None
    counts: dict[str, int] = Field(default_factory=dict)
    """state or verdict -> how many members"""
    message: str = ""
    temporal_url: str = ""


class BatchDetail(BatchView):
    members: list[MemberView] = Field(default_factory=list)
