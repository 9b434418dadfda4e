"""Temporal names and inputs: queues, ids, search attributes, and one frozen type per call. Fields are only added."""

from datetime import datetime, timedelta

from pydantic import BaseModel, ConfigDict, Field
from temporalio.common import SearchAttributeKey

from contracts.durations import Duration
from contracts.messages import CancelMode, Installed, Outcome, UpgradePolicy
from domain.node import Protocol
from domain.operation import BACK_OFF_CAP, BACK_OFF_FIRST, Kind, Phase, Reason, State

CONTROL_QUEUE = "nodesmith"
"""batches, the fleet monitor and short activities: none of them queues behind an install"""
_NODE = "-node"


def node_queue(queue: str = CONTROL_QUEUE) -> str:
    """Operations and their `run_on_node`, which holds its slot for as long as a node works.

    One queue for both: Temporal gives the activity to the worker that asks for it, without a task of its own.
    """
    return f"{control_queue(queue)}{_NODE}"  # nodesmith-node


def control_queue(queue: str) -> str:
    """The queue of short activities beside that one."""
    return queue.removesuffix(_NODE)  # nodesmith


BACKEND_OPERATION = "BackendOperation"
FLEET_MONITOR = "FleetMonitor"
FLEET_MONITOR_ID = "fleet-monitor"

NODE = SearchAttributeKey.for_keyword("NodesmithNode")
BACKEND = SearchAttributeKey.for_keyword("NodesmithBackend")
KIND = SearchAttributeKey.for_keyword("NodesmithKind")
STATE = SearchAttributeKey.for_keyword("NodesmithState")
BATCH = SearchAttributeKey.for_keyword("NodesmithBatch")
SEARCH_ATTRIBUTES = (NODE, BACKEND, KIND, STATE, BATCH)

MEMO_OP_ID = "op_id"
MEMO_INTENT = "intent"


def operation_workflow_id(node_id: str, family: str) -> str:
    """The lock: Temporal admits one open run per id."""
    return f"backend:{node_id}:{family}"  # backend:{node_id}:{family}


class Payload(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Policy(Payload):
    """Every timeout and limit of an operation, by name. Settings fill it at admission; tests shorten it."""

    wait_for_node: Duration | None = timedelta(days=7)
    """before the first dispatch; None = for ever"""
    lost_after: Duration = timedelta(hours=24)
    """a node that went away with work on it"""
    deadline: Duration = timedelta(hours=24)
    """time on the node, all attempts together"""
    request_timeout: Duration = timedelta(minutes=15)
    """then the slot is given back and the operation is still_installing"""
    accept_timeout: Duration = timedelta(seconds=5)
    silence: Duration = timedelta(seconds=10)
    """without a word from the node: ask it"""
    heartbeat_timeout: Duration = timedelta(seconds=20)
    node_poll: Duration = timedelta(seconds=60)
    """look for an absent node although nobody said it was back"""
    back_off_first: Duration = BACK_OFF_FIRST
    back_off_cap: Duration = BACK_OFF_CAP
    max_attempts: int = 10
    phase_news: Duration = timedelta(seconds=10)
    """at most one signal about a phase in this time"""
    source_retry: Duration = timedelta(seconds=60)
    """a source that is down and names no Retry-After"""


class Wanted(Payload):
    """What is asked of a node; everything a retry needs."""

    kind: Kind = Kind.INSTALL
    backend: str
    """the name as asked, without the gallery's prefix"""
    family: str
    version: str = ""
    uri: str = ""
    mirrors: tuple[str, ...] = ()
    """where else the same artifact is, in the order in which they are asked"""
    sha256: str = ""
    size: int = 0
    name: str = ""
    alias: str = ""
    force: bool = False
    start: bool = False
    upgrade_policy: UpgradePolicy = UpgradePolicy.RESTART


class Limits(Payload):
    """Limits that somebody asked for, beside those of the settings; a retry keeps them."""

    wait_for_node_s: float | None = None
    deadline_s: float | None = None
    max_attempts: int | None = None


class OperationRequest(Payload):
    """An admitted operation: identity, target, intent, and who asked for it."""

    op_id: str
    node_id: str
    node_name: str
    protocol: Protocol = Protocol.NODESMITH
    wanted: Wanted
    requested_by: str = ""
    note: str = ""
    """the person's own reason, as typed"""
    batch_id: str | None = None
    retry_of: str | None = None
    limits: Limits = Limits()
    created_at: datetime


class CancelRequest(Payload):
    """Signal `cancel`; one for another op_id is dropped."""

    op_id: str
    by: str = ""
    why: Reason = Reason.REQUESTED
    detail: str = ""
    mode: CancelMode = CancelMode.DISCARD
    only_undispatched: bool = False
    """dropped when the node may have received the command: for a newer request that would replace it"""
    force: bool = False
    """end without the node's word; a new inventory tells what is there"""


class RunState(BaseModel):
    """Everything a run knows, in one object: continue-as-new hands it over whole, so that no clock is forgotten."""

    model_config = ConfigDict(extra="ignore")

    state: State = State.QUEUED
    reason: Reason | None = None
    detail: str = ""
    until: datetime | None = None
    seq: int = 0
    """number of the last transition"""
    failures: int = 0
    decision: int = 1
    """which decision to try is in force; it rises only with a back-off or a source that is down"""
    sent_decision: int = 0
    """the newest decision that may have reached the node, as far as this run has recorded; the row may know more"""
    accepted: bool = False
    """the node has begun the decision in force"""
    dispatched_at: datetime | None = None
    """when the node began for the first time"""
    away_since: datetime | None = None
    phase: Phase | None = None
    node_heard: bool = False
    """the node gave a sign of life that nothing has followed from yet"""
    row_doubted: bool = False
    """the fleet monitor says that the row has ended"""
    cancel: CancelRequest | None = None
    cancelled_by: str = ""
    cancel_until: datetime | None = None
    """how long an unreachable node may still be told of the cancel"""
    store_failures: int = 0
    """how often in a row PostgreSQL gave no permit, or had no row"""
    has_slot: bool = False
    """its batch gave it a slot after its node had been away"""


class OperationInput(Payload):
    request: OperationRequest
    policy: Policy = Policy()
    carried: RunState | None = None


class RowEnd(Payload):
    """How the row of an operation says that it ended. The row is final: a run that meets it closes the same way."""

    state: State
    reason: Reason | None = None
    detail: str = ""
    before: Installed | None = None
    after: Installed | None = None


class OperationResult(Payload):
    """What the run returns; the Temporal Web UI shows it."""

    op_id: str
    state: State
    reason: Reason | None = None
    detail: str = ""
    before: Installed | None = None
    after: Installed | None = None


# signals and query of BackendOperation ------------------------------------------------------------------------

SIGNAL_CANCEL = "cancel"
SIGNAL_NODE_BACK = "node_back"
SIGNAL_OUTCOME = "outcome"
SIGNAL_PHASE = "phase"
SIGNAL_TURN = "turn"
SIGNAL_ROW_ENDED = "row_ended"
QUERY_STATUS = "status"


class NodeBack(Payload):
    """Signal `node_back`: the node is heard again."""

    node_id: str


class OutcomeReport(Payload):
    """Signal `outcome`: the node reported an end while no worker was attached. It only wakes: the run asks the node."""

    op_id: str


class RowEndNotice(Payload):
    """Signal `row_ended`: the row of this run's operation has ended; the run looks, and closes the same way."""

    op_id: str


class Turn(Payload):
    """Signal `turn`: there is room for this member of a batch."""

    op_id: str


class PhaseReport(Payload):
    """Signal `phase`: the node has begun, or went on to its next phase; at most one in 10 s."""

    op_id: str
    phase: Phase


class Status(Payload):
    """Answer to the query `status`."""

    op_id: str
    state: State
    reason: Reason | None = None
    detail: str = ""
    until: datetime | None = None
    phase: Phase | None = None
    attempt: int = 0
    dispatched: bool = False


# activities ---------------------------------------------------------------------------------------------------

RECORD = "record"
WATCH_FLEET = "watch_fleet"


class Projection(Payload):
    """One transition, whole: the row of the operation and the event that goes with it."""

    request: OperationRequest
    workflow_id: str
    run_id: str = ""
    at: datetime
    seq: int
    state: State
    reason: Reason | None = None
    detail: str = ""
    until: datetime | None = None
    attempt: int = 0
    dispatched_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    cancelled_by: str = ""


class Run(Payload):
    """A run as Temporal describes it, without asking a worker."""

    workflow_id: str
    run_id: str
    is_open: bool
    op_id: str = ""
    intent: str = ""


class Transitions(Payload):
    """Input of `record`: everything that happened since the last write, oldest first, in one transaction."""

    rows: tuple[Projection, ...]
    only_unsent: bool = False
    """an end without the node's word: refused if a command may have reached the node"""


class Recorded(Payload):
    """Output of `record`."""

    written: bool = True
    end: RowEnd | None = None
    """set when the write was refused because the operation had ended already"""


class FleetWatch(Payload):
    """Input of `watch_fleet` and of the workflow around it."""

    tick: Duration = timedelta(seconds=15)
    heartbeat_timeout: Duration = timedelta(seconds=15)
    """after a worker died, another goes on with the watch within 30 s"""
    rest: Duration = Field(default=timedelta(hours=1))
    """how long one activity runs before the workflow continues as new"""
