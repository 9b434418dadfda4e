"""Temporal names and payloads of batches, one request for many nodes."""

from datetime import datetime

from pydantic import Field

from nodesmith.contracts.temporal.operations import Intent, Limits, OperationRequest, Payload, Policy, SignalText
from nodesmith.domain.batch import ENDED_BATCHES, BatchState, MemberVerdict
from nodesmith.domain.identity import derived_op_id
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import Reason, State

__all__ = [
    "ADMIT_MEMBERS",
    "BATCH",
    "CANCEL_MEMBERS",
    "CLOSE_BATCH",
    "ENDED_BATCHES",
    "OPEN_BATCH",
    "QUERY_PROGRESS",
    "SIGNAL_CANCEL",
    "SIGNAL_PAUSE",
    "SIGNAL_READY",
    "SIGNAL_RESUME",
    "SIGNAL_ROW_MISSING",
    "WATCH_MEMBERS",
    "AdmitMembers",
    "Admitted",
    "BatchCarried",
    "BatchInput",
    "BatchMember",
    "BatchOrder",
    "BatchProgress",
    "BatchState",
    "CancelMembers",
    "CloseBatch",
    "MemberReady",
    "MemberVerdict",
    "MembersWatched",
    "Target",
    "WatchMembers",
    "batch_workflow_id",
    "member_op_id",
    "member_request",
]

BATCH = "Batch"
SIGNAL_PAUSE = "pause"
SIGNAL_RESUME = "resume"
SIGNAL_CANCEL = "cancel"
SIGNAL_ROW_MISSING = "row_missing"
SIGNAL_READY = "ready"
QUERY_PROGRESS = "progress"

OPEN_BATCH = "open_batch"
ADMIT_MEMBERS = "admit_members"
WATCH_MEMBERS = "watch_members"
CANCEL_MEMBERS = "cancel_members"
CLOSE_BATCH = "close_batch"


def batch_workflow_id(batch_id: str) -> str:
    return f"batch:{batch_id}"  # batch:{batch_id}


def member_op_id(batch_id: str, node_id: str) -> str:
    """Derived from the batch, so that a batch that is started twice requests the same operations."""
    return derived_op_id(batch_id, node_id)


class Target(Payload):
    """One node of a batch, fixed when the batch was requested."""

    node_id: str
    node_name: str
    protocol: Protocol = Protocol.NODESMITH
    build: str = ""
    """which of the batch's builds this node gets"""


class BatchMember(Payload):
    """A node with a verdict instead of an operation, or with another operation than planned."""

    node_id: str
    node_name: str
    op_id: str | None = None
    joined: bool = False
    verdict: MemberVerdict | None = None
    detail: str = ""


class BatchCarried(Payload):
    """State that continue-as-new passes to the next run."""

    waiting: tuple[Target, ...]
    open_ops: dict[str, Target] = Field(default_factory=dict)
    joined: tuple[str, ...] = ()
    failures: int = 0
    paused: bool = False
    cancelled_by: str | None = None
    ready: dict[str, str] = Field(default_factory=dict)
    has_turn: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    attempts: dict[str, int] = Field(default_factory=dict)
    """failed attempts of open members"""
    ended_attempts: int = 0
    """failed attempts of ended members"""
    cancel_reason: str = ""
    state: BatchState = BatchState.RUNNING
    detail: str = ""


class BatchInput(Payload):
    batch_id: str
    wanted: Intent
    """version and digest, pinned once for all nodes"""
    builds: dict[str, Intent] = Field(default_factory=dict)
    """builds of a meta for different hardware, each pinned once"""
    targets: tuple[Target, ...]
    left_out: tuple[BatchMember, ...] = ()
    """skipped at the request, each with its reason"""
    max_parallel: int = 20
    """0 = all at once"""
    max_failures: int | None = None
    count_attempts: bool = False
    """every failed attempt counts against `max_failures`, not only failed members"""
    policy: Policy = Policy()
    limits: Limits = Limits()
    """limits of the request; `policy` includes them, but a retry of a member needs them separately"""
    requested_by: str = ""
    note: str = ""
    retry_of: str | None = None
    created_at: datetime
    on_drained: bool = False
    carried: BatchCarried | None = None


def member_request(batch: BatchInput, target: Target) -> OperationRequest:
    """Return the operation that a batch requests on one of its nodes."""
    return OperationRequest(
        op_id=member_op_id(batch.batch_id, target.node_id),
        node_id=target.node_id,
        node_name=target.node_name,
        protocol=target.protocol,
        wanted=batch.builds.get(target.build, batch.wanted),
        requested_by=batch.requested_by,
        note=batch.note,
        batch_id=batch.batch_id,
        limits=batch.limits,
        created_at=batch.created_at,
    )


class BatchOrder(Payload):
    """Signals `pause`, `resume` and `cancel`."""

    by: SignalText = ""
    reason: SignalText = ""
    """the user's reason, as typed"""


class MemberReady(Payload):
    """Signal `ready`: a member whose node was away can begin now, or no longer can."""

    op_id: str
    workflow_id: str
    is_ready: bool = True


class AdmitMembers(Payload):
    batch: BatchInput
    targets: tuple[Target, ...]


class Admitted(Payload):
    """One member after admission: an open operation, its own or joined, or a verdict."""

    members: tuple[BatchMember, ...]


class WatchMembers(Payload):
    """Input of a watch that ends when a member ends, when the set of waiting members changes, or an attempt fails."""

    batch_id: str
    op_ids: tuple[str, ...]
    away: tuple[str, ...] = ()
    attempts: dict[str, int] | None = None
    """known number of failed attempts; None: they are not counted"""


class MembersWatched(Payload):
    ended: dict[str, State] = Field(default_factory=dict)
    away: tuple[str, ...] = ()
    attempts: dict[str, int] = Field(default_factory=dict)


class CancelMembers(Payload):
    op_ids: tuple[str, ...]
    runs: dict[str, str] = Field(default_factory=dict)
    """op_id -> workflow id: also cancels a member whose row is not written yet"""
    by: str = ""
    why: Reason = Reason.REQUESTED
    detail: str = ""


class CloseBatch(Payload):
    """The end state of the batch, and members that get a verdict with it."""

    batch_id: str
    state: BatchState
    detail: str = ""
    at: datetime
    members: tuple[BatchMember, ...] = ()


class BatchProgress(Payload):
    """Result of the query `progress` and of the run."""

    batch_id: str
    state: BatchState
    waiting: int = 0
    running: int = 0
    ended: int = 0
    failures: int = 0
