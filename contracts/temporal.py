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
PATCH_TOLD_AT_ONCE = "a-cancel-is-told-at-once"
"""runs that were cancelled before it told the node by a normal activity"""
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


class Carried(Payload):
    """What one run hands to the next when its history gets long."""

    state: State
    seq: int
    failures: int = 0
    dispatched_at: datetime | None = None
    reason: Reason | None = None
    detail: str = ""


class OperationInput(Payload):
    request: OperationRequest
    policy: Policy = Policy()
    carried: Carried | None = None
    asks_at_once: bool = False
    """the node's first word is heard where the run stands; runs from before that leave it to `run_on_node`"""
    takes_turns: bool = False
    """a member of a batch whose node was away asks it for a place before it begins; runs from before that just begin"""


class OperationResult(Payload):
    """What the run returns; the Temporal Web UI shows it."""

    op_id: str
    state: State
    detail: str = ""
    before: Installed | None = None
    after: Installed | None = None


# signals and query of BackendOperation ------------------------------------------------------------------------

SIGNAL_CANCEL = "cancel"
SIGNAL_NODE_BACK = "node_back"
SIGNAL_OUTCOME = "outcome"
SIGNAL_PHASE = "phase"
SIGNAL_TURN = "turn"
QUERY_STATUS = "status"


class CancelRequest(Payload):
    """Signal `cancel`; one for another op_id is dropped."""

    op_id: str
    by: str = ""
    why: Reason = Reason.REQUESTED
    detail: str = ""
    mode: CancelMode = CancelMode.DISCARD
    only_undispatched: bool = False
    """dropped when the node may have heard of it: for a newer request that would replace it"""
    force: bool = False
    """end without the node's word; a new inventory tells what is there"""


class NodeBack(Payload):
    """Signal `node_back`: the node is heard again."""

    node_id: str


class OutcomeReport(Payload):
    """Signal `outcome`: a node's report that arrived while nobody was attached."""

    outcome: Outcome


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

FIRST_WORD = "first_word"
RUN_ON_NODE = "run_on_node"
CANCEL_ON_NODE = "cancel_on_node"
RECORD = "record"
WATCH_FLEET = "watch_fleet"


class NodeTask(Payload):
    """Input of `first_word` and `run_on_node`; the decision is the time for which the first of them was scheduled."""

    request: OperationRequest
    policy: Policy
    on_node: bool = False
    """the node works on it already, as far as we know: a hold does not concern it"""
    decision: int = 0
    """of the command that the node has accepted; 0: it is sent now"""


class NodeWord(Payload):
    """What came of asking a node: what it said, or that it said nothing. Nothing is guessed."""

    outcome: Outcome | None = None
    """the node's own report: the only way to succeed or fail"""
    away: bool = False
    """nobody answers at the node"""
    link_down: bool = False
    """away, but it is NATS that does not answer: nothing is known of the node"""
    accepted: bool = False
    """the node has begun (also when we then lost sight of it)"""
    refused: str = ""
    held: str = ""
    """an operator holds back what is not on a node yet; says who and why"""
    busy_op_id: str = ""
    decision: int = 0
    """with which it was asked"""


class CancelOrder(Payload):
    """Input of `cancel_on_node`."""

    node_id: str
    node_name: str
    protocol: Protocol
    op_id: str
    family: str
    mode: CancelMode = CancelMode.DISCARD


class CancelWord(Payload):
    """What the node said to a cancel."""

    stopped: bool = False
    stopped_after_s: float = 0.0
    outcome: Outcome | None = None
    """set when the cancel came too late"""
    away: bool = False
    cannot: bool = False
    """a LocalAI worker: it cannot be interrupted"""


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


class FleetWatch(Payload):
    """Input of `watch_fleet` and of the workflow around it."""

    tick: Duration = timedelta(seconds=15)
    heartbeat_timeout: Duration = timedelta(seconds=15)
    """after a worker died, another goes on with the watch within 30 s"""
    rest: Duration = Field(default=timedelta(hours=1))
    """how long one activity runs before the workflow continues as new"""
