"""HTTP shapes of batches: request, plan and status. Without Temporal, for thin clients."""

from datetime import datetime
from enum import StrEnum, auto

from pydantic import Field

from nodesmith.contracts.http.operations import InstallRequest
from nodesmith.contracts.http.shared import ReasonBody, Shape
from nodesmith.domain.batch import BatchState
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason

MOST_TARGETS = 10_000


class BatchRequest(InstallRequest):
    """`POST /api/v1/batches`: what to do, and where: `nodes`, `selector` or `everywhere`."""

    kind: Kind = Kind.INSTALL
    nodes: list[str] = Field(default_factory=list, max_length=MOST_TARGETS)
    selector: str = Field(default="", max_length=2000)
    everywhere: bool = False
    max_parallel: int = Field(default=20, ge=0, le=MOST_TARGETS)
    max_failures: int | None = Field(default=None, ge=1, le=MOST_TARGETS)
    count_attempts: bool = Field(
        default=False, description="`max_failures` counts every failed attempt, not only nodes that gave up."
    )


class RetrySelect(StrEnum):
    """Which members of a batch are retried; never those that succeeded."""

    FAILED = auto()
    """failed, gave up, did not connect, had a conflict, or were not started because others failed"""
    CANCELLED = auto()
    """cancelled, or not started because the batch was cancelled"""
    ALL_UNFINISHED = auto()
    """both, and members whose node was refused"""


class BatchRetry(ReasonBody):
    """`POST /api/v1/batches/{id}/retry`."""

    select: RetrySelect = RetrySelect.FAILED


class PlannedMember(Shape):
    """One node of a plan: the action and its cost."""

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
    """202: the batch is durable."""

    batch_id: str
    jobID: str  # noqa: N815 - LocalAI's name
    statusUrl: str  # noqa: N815
    message: str
    jobs: dict[str, str]
    """node name -> operation id, known before it starts"""
    skipped: dict[str, str] = Field(default_factory=dict)
    """node name -> reason"""
    repeated: bool = False
    """true: a repeated request with the same `Idempotency-Key`; this is the first response"""


class MemberView(Shape):
    node_id: str
    node_name: str
    op_id: str | None = None
    joined: bool = False
    state: str
    """the state of its operation, its verdict, or `waiting_for_turn`"""
    reason: Reason | None = None
    detail: str = ""
    percentage: float = 0.0


class FailureCause(Shape):
    """One cause of failed attempts in a batch."""

    cause: str
    attempts: int
    """number of failed attempts"""
    nodes: int
    """number of nodes"""


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
    """state or verdict -> number of members"""
    failed_attempts: int = 0
    """total of all members; set for a single batch, not in lists"""
    failed_nodes: int = 0
    """members with at least one failed attempt"""
    troubles: list[FailureCause] = Field(default_factory=list)
    """the three most frequent causes of failed attempts"""
    message: str = ""
    temporal_url: str = ""


class BatchDetail(BatchView):
    members: list[MemberView] = Field(default_factory=list)
