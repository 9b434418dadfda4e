"""Batches over HTTP: what is asked for, what would be done, and how it stands. Free of Temporal, for thin clients."""

from datetime import datetime
from enum import StrEnum, auto

from pydantic import Field

from contracts.http import Because, Shape
from contracts.operation_http import InstallRequest
from domain.operation import Kind, Reason
from domain.wire import WireEnum

MOST_TARGETS = 10_000


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


class BatchRequest(InstallRequest):
    """`POST /api/batches`: what, and where: `nodes`, `selector` or `everywhere`."""

    kind: Kind = Kind.INSTALL
    nodes: list[str] = Field(default_factory=list, max_length=MOST_TARGETS)
    selector: str = Field(default="", max_length=2000)
    everywhere: bool = False
    max_parallel: int = Field(default=20, ge=0, le=MOST_TARGETS)
    max_failures: int | None = Field(default=None, ge=1, le=MOST_TARGETS)
    count_attempts: bool = Field(
        default=False, description="`max_failures` counts every failed attempt, not only nodes that gave up."
    )
    dry_run: bool = False


class RetrySelect(StrEnum):
    """Which members of a batch a retry asks again; never those that succeeded."""

    FAILED = auto()
    """failed, gave up, never came, met a conflict, or were not started because others failed"""
    CANCELLED = auto()
    """cancelled, or not started because the batch was cancelled"""
    ALL_UNFINISHED = auto()
    """both, and those whose node was refused"""


class BatchRetry(Because):
    """`POST /api/batches/{id}/retry`."""

    select: RetrySelect = RetrySelect.FAILED


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
    repeated: bool = False
    """the same `Idempotency-Key` came with the same request before: this is its answer"""


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


class Trouble(Shape):
    """One cause of failed attempts in a batch."""

    cause: str
    attempts: int
    """how often it made an attempt fail"""
    nodes: int
    """on how many nodes"""


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
    count_attempts: bool = False
    max_attempts: int | None = None
    requested_by: str = ""
    note: str = ""
    retry_of: str | None = None
    created_at: datetime
    ended_at: datetime | None = None
    counts: dict[str, int] = Field(default_factory=dict)
    """state or verdict -> how many members"""
    failed_attempts: int = 0
    """of all members together; told of one batch, not in lists"""
    failed_nodes: int = 0
    """members with at least one failed attempt"""
    troubles: list[Trouble] = Field(default_factory=list)
    """the three most frequent causes of failed attempts"""
    message: str = ""
    temporal_url: str = ""


class BatchDetail(BatchView):
    members: list[MemberView] = Field(default_factory=list)
