"""HTTP shapes of batches: request, plan and status. Without Temporal, for thin clients."""

from datetime import datetime

from pydantic import Field

from nodesmith.contracts.http.operations import InstallRequest, RequestedKind
from nodesmith.contracts.http.shared import ReasonBody, Shape, example
from nodesmith.domain.batch import BatchState, RetrySelect
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason

MOST_TARGETS = 10_000


class BatchRequest(InstallRequest):
    """`POST /api/v1/batches`: what to do, and where: `nodes`, `selector` or `everywhere`."""

    model_config = example(kind="upgrade", backend="echo", selector="zone=a", max_parallel=5)

    kind: RequestedKind = Kind.INSTALL
    """what to do on each node"""
    nodes: list[str] = Field(default_factory=list, max_length=MOST_TARGETS)
    """ids or names of the nodes"""
    selector: str = Field(default="", max_length=2000)
    """labels that choose the nodes, as in `GET /api/v1/nodes`"""
    everywhere: bool = False
    """every node that can take it"""
    max_parallel: int = Field(default=20, ge=0, le=MOST_TARGETS)
    """operations that run at the same time; 0: no limit"""
    max_failures: int | None = Field(default=None, ge=1, le=MOST_TARGETS)
    """nodes that may fail before no further ones are started; null: the default of the kind"""
    count_attempts: bool = Field(
        default=False, description="`max_failures` counts every failed attempt, not only nodes that gave up."
    )


class BatchRetry(ReasonBody):
    """`POST /api/v1/batches/{id}/retry`."""

    model_config = example(select="failed", reason="the mirror is back")

    select: RetrySelect = RetrySelect.FAILED
    """which members"""


class PlannedMember(Shape):
    """One node of a plan: the action and its cost."""

    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    action: str
    """install, upgrade, rollback, remove, nothing, skip"""
    reason: str = ""
    """why it is skipped, or does nothing"""
    current_version: str = ""
    """the version that is installed there; empty if none"""
    bytes: int = 0
    """bytes to download"""
    free_disk: int | None = None
    """free disk space of the node in bytes; null: not reported"""
    suitable: bool = True
    """false: the node has not enough disk space"""
    outage: str = ""
    """how long an installed backend is not available, in words"""


class BatchPlan(Shape):
    backend: str
    """name of the backend"""
    version: str = ""
    """the version that would be installed"""
    sha256: str = ""
    """the digest that would be installed"""
    members: list[PlannedMember]
    """one entry per node"""
    targets: int
    """nodes that would get an operation"""
    skipped: int
    """nodes that would not"""


class BatchAccepted(Shape):
    """202: the batch is durable."""

    batch_id: str
    """id of the batch"""
    message: str
    """what was accepted, as a sentence"""
    operations: dict[str, str]
    """node name -> operation id, known before it starts"""
    skipped: dict[str, str] = Field(default_factory=dict)
    """node name -> reason"""
    repeated: bool = False
    """true: a repeated request with the same `Idempotency-Key`; this is the first response"""


class MemberView(Shape):
    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    op_id: str | None = None
    """its operation; null before it has one, and if it gets none"""
    joined: bool = False
    """the operation was open already; a cancel of the batch does not cancel it"""
    state: str
    """the state of its operation, its verdict, or `waiting_for_turn`"""
    reason: Reason | None = None
    """why it waits, or ended"""
    detail: str = ""
    """what happened, in words"""
    percentage: float = 0.0
    """progress of its operation"""


class FailureCause(Shape):
    """One cause of failed attempts in a batch."""

    cause: str
    """what went wrong, in words"""
    attempts: int
    """number of failed attempts"""
    nodes: int
    """number of nodes"""


class BatchView(Shape):
    batch_id: str
    """id of the batch"""
    kind: Kind
    """what it does on each node"""
    backend: str
    """name of the backend"""
    family: str
    """the name under which it is locked and stored on a node"""
    version: str = ""
    """the version it installs; empty if it names none"""
    state: BatchState
    """whether it runs, and how it ended"""
    detail: str = ""
    """what happened, in words"""
    max_parallel: int
    """operations that run at the same time; 0: no limit"""
    max_failures: int | None = None
    """nodes that may fail before no further ones are started; null: no limit"""
    count_attempts: bool = False
    """`max_failures` counts every failed attempt, not only nodes that gave up"""
    max_attempts: int | None = None
    """attempts on one node before it gives up; null: the settings"""
    requested_by: str = ""
    """who requested it"""
    note: str = ""
    """why, as the caller put it"""
    retry_of: str | None = None
    """the batch whose members it retries"""
    created_at: datetime
    """when it was requested"""
    ended_at: datetime | None = None
    """when every member had its result; null: it is open"""
    counts: dict[str, int] = Field(default_factory=dict)
    """state or verdict -> number of members"""
    failed_attempts: int = 0
    """total of all members; set for a single batch, not in lists"""
    failed_nodes: int = 0
    """members with at least one failed attempt"""
    troubles: list[FailureCause] = Field(default_factory=list)
    """the three most frequent causes of failed attempts"""
    message: str = ""
    """state and counts as one sentence"""
    temporal_url: str = ""
    """its run in the Temporal Web UI; empty without one"""


class BatchDetail(BatchView):
    members: list[MemberView] = Field(default_factory=list)
    """one entry per node, by name"""
