"""Batches: many nodes, one intent. Temporal names and inputs; `contracts.batch_http` has what the API says of them."""

from datetime import datetime
from enum import auto

from pydantic import Field

from contracts.batch_http import (
    ENDED_BATCHES,
    MOST_TARGETS,
    BatchAccepted,
    BatchDetail,
    BatchPlan,
    BatchRequest,
    BatchRetry,
    BatchState,
    BatchView,
    MemberView,
    PlannedMember,
    RetrySelect,
    Trouble,
)
from contracts.temporal import Limits, Payload, Policy, Wanted
from domain.identity import derived_op_id
from domain.node import Protocol
from domain.operation import Reason, State
from domain.wire import WireEnum

__all__ = [
    "ADMIT_MEMBERS",
    "BATCH",
    "CANCEL_MEMBERS",
    "CLOSE_BATCH",
    "ENDED_BATCHES",
    "MOST_TARGETS",
    "OPEN_BATCH",
    "QUERY_PROGRESS",
    "SIGNAL_CANCEL",
    "SIGNAL_PAUSE",
    "SIGNAL_READY",
    "SIGNAL_RESUME",
    "WATCH_MEMBERS",
    "AdmitMembers",
    "Admitted",
    "BatchAccepted",
    "BatchCarried",
    "BatchDetail",
    "BatchInput",
    "BatchOrder",
    "BatchPlan",
    "BatchProgress",
    "BatchRequest",
    "BatchRetry",
    "BatchState",
    "BatchView",
    "CancelMembers",
    "CloseBatch",
    "Member",
    "MemberReady",
    "MemberView",
    "PlannedMember",
    "RetrySelect",
    "Target",
    "Trouble",
    "Verdict",
    "WatchMembers",
    "Watched",
    "batch_workflow_id",
    "member_op_id",
]

BATCH = "Batch"
SIGNAL_PAUSE = "pause"
SIGNAL_RESUME = "resume"
SIGNAL_CANCEL = "cancel"
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
    """Known before the operation is: a batch that is asked twice asks for the same operations."""
    return derived_op_id(batch_id, node_id)


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
    build: str = ""
    """which of the batch's builds is for this node"""


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
    ready: dict[str, str] = Field(default_factory=dict)
    has_turn: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    attempts: dict[str, int] = Field(default_factory=dict)
    """failed attempts of members that are open"""
    ended_attempts: int = 0
    """and of those that have ended"""
    cancel_reason: str = ""
    state: BatchState = BatchState.RUNNING
    detail: str = ""


class BatchInput(Payload):
    batch_id: str
    wanted: Wanted
    """version and digest pinned once, for all"""
    builds: dict[str, Wanted] = Field(default_factory=dict)
    """a meta is another build on other hardware: each pinned once"""
    targets: tuple[Target, ...]
    left_out: tuple[Member, ...] = ()
    """skipped when it was asked for, each with its reason"""
    max_parallel: int = 20
    """0 = all at once"""
    max_failures: int | None = None
    count_attempts: bool = False
    """every failed attempt counts against `max_failures`, not only members that failed"""
    policy: Policy = Policy()
    limits: Limits = Limits()
    """what was asked for beside the settings; `policy` has it already, a retry of a member needs it"""
    requested_by: str = ""
    note: str = ""
    retry_of: str | None = None
    created_at: datetime
    on_drained: bool = False
    carried: BatchCarried | None = None


class BatchOrder(Payload):
    """Signals `pause`, `resume` and `cancel`."""

    by: str = ""
    reason: str = ""
    """the person's own words"""


class MemberReady(Payload):
    """Signal `ready`: a member whose node was away could begin now, or cannot after all."""

    op_id: str
    workflow_id: str
    is_ready: bool = True


class AdmitMembers(Payload):
    batch: BatchInput
    targets: tuple[Target, ...]


class Admitted(Payload):
    """One member after admission: an open operation, ours or joined, or a verdict."""

    members: tuple[Member, ...]


class WatchMembers(Payload):
    """Return when one of these ends, when the set of those that wait for their node changes, or an attempt fails."""

    batch_id: str
    op_ids: tuple[str, ...]
    away: tuple[str, ...] = ()
    attempts: dict[str, int] | None = None
    """failed attempts as far as they are known; None: they are not counted"""


class Watched(Payload):
    ended: dict[str, State] = Field(default_factory=dict)
    away: tuple[str, ...] = ()
    attempts: dict[str, int] = Field(default_factory=dict)


class CancelMembers(Payload):
    op_ids: tuple[str, ...]
    runs: dict[str, str] = Field(default_factory=dict)
    """op_id -> workflow id: a member whose row is not written yet is cancelled too"""
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
