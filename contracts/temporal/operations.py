"""Temporal names and payloads: queues, ids, search attributes, and one frozen type per call. Fields are only added."""

from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from temporalio.common import SearchAttributeKey

from nodesmith.contracts.durations import Duration
from nodesmith.contracts.nats.messages import CancelMode, Installed, Outcome, UpgradePolicy
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import BACK_OFF_CAP, BACK_OFF_FIRST, Phase, Reason, State

CONTROL_QUEUE = "nodesmith"
"""for batches, the fleet monitor and short activities, so that none of them queues behind an install"""
_NODE = "-node"


def node_queue(queue: str = CONTROL_QUEUE) -> str:
    """The queue for operations and their `run_on_node`, which holds its slot while the node works.

    One queue for both: Temporal then gives the activity to the worker that requested it, without a separate task.
    """
    return f"{control_queue(queue)}{_NODE}"  # nodesmith-node


def control_queue(queue: str) -> str:
    """The queue for short activities next to that one."""
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
    """This id is the lock: Temporal admits one open run per id."""
    return f"backend:{node_id}:{family}"  # backend:{node_id}:{family}


class Payload(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


LONGEST_SIGNAL_TEXT = 1000
SignalText = Annotated[str, AfterValidator(lambda text: text[:LONGEST_SIGNAL_TEXT])]
"""cut, not refused: a client of Temporal may send 2 MB, which would be in the row and in every list of operations"""


class Policy(Payload):
    """Every timeout and limit of an operation. Settings fill it at admission; tests shorten it."""

    wait_for_node: Duration | None = timedelta(days=7)
    """before the first dispatch; None: no limit"""
    lost_after: Duration = timedelta(hours=24)
    """for a node that went away during the work"""
    deadline: Duration = timedelta(hours=24)
    """time on the node, all attempts together"""
    request_timeout: Duration = timedelta(minutes=15)
    """then the slot is released and the operation is still_installing"""
    accept_timeout: Duration = timedelta(seconds=5)
    silence: Duration = timedelta(seconds=10)
    """without a report from the node: ask it"""
    heartbeat_timeout: Duration = timedelta(seconds=20)
    node_poll: Duration = timedelta(seconds=60)
    """check for an absent node although no signal said that it is back"""
    back_off_first: Duration = BACK_OFF_FIRST
    back_off_cap: Duration = BACK_OFF_CAP
    max_attempts: int = 10
    phase_news: Duration = timedelta(seconds=10)
    """at most one phase signal in this time"""
    source_retry: Duration = timedelta(seconds=60)
    """for a source that is down and sends no Retry-After"""


class Intent(Payload):
    """The requested change; everything that a retry needs."""

    kind: Kind = Kind.INSTALL
    backend: str
    """the name as requested, without the gallery's prefix; of a load or unload the replica, `model#index`"""
    family: str
    version: str = ""
    uri: str = ""
    mirrors: tuple[str, ...] = ()
    """other places of the same artifact, in the order in which they are tried"""
    sha256: str = ""
    size: int = 0
    name: str = ""
    alias: str = ""
    force: bool = False
    start: bool = False
    upgrade_policy: UpgradePolicy = UpgradePolicy.RESTART
    gallery: str = ""
    """where it was found; empty for an install by uri"""
    verified: str = ""
    """how admission verified the artifact, for display"""
    model: str = ""
    """for a load or unload: with `replica_index`, the replica"""
    replica_index: int = 0
    revision: int = 0
    """of the model's deployment; what it says is only in the signed order, because it may have secrets"""


class Limits(Payload):
    """Limits of the request, in addition to the settings; a retry keeps them."""

    wait_for_node_s: float | None = None
    deadline_s: float | None = None
    max_attempts: int | None = None


class OperationRequest(Payload):
    """An admitted operation: identity, target, intent and actor."""

    op_id: str
    node_id: str
    node_name: str
    protocol: Protocol = Protocol.NODESMITH
    wanted: Intent
    requested_by: str = ""
    note: str = ""
    """the user's reason, as typed"""
    batch_id: str | None = None
    retry_of: str | None = None
    limits: Limits = Limits()
    if_current: str = ""
    """the digest in the inventory: the order replaces or removes only that one"""
    after: str = ""
    """op_id of the operation that installs the backend; this one starts when that has succeeded"""
    created_at: datetime


class CancelRequest(Payload):
    """Signal `cancel`; a signal for another op_id is dropped."""

    op_id: str
    by: SignalText = ""
    why: Reason = Reason.REQUESTED
    detail: SignalText = ""
    mode: CancelMode = CancelMode.DISCARD
    only_undispatched: bool = False
    """dropped if the node may have received the command: sent for a newer request that would replace it"""
    force: bool = False
    """end without an answer from the node; a new inventory shows what is installed"""
    withdrawn: bool = False
    """withdraws the same `only_undispatched` request, unless it was carried out: the newer request was refused"""


class RunState(BaseModel):
    """The whole state of a run in one object: continue-as-new passes it on complete, including all clocks."""

    model_config = ConfigDict(extra="ignore")

    state: State = State.QUEUED
    reason: Reason | None = None
    detail: str = ""
    until: datetime | None = None
    seq: int = 0
    """number of the last transition"""
    failures: int = 0
    decision: int = 1
    """the current decision; it increases only with a back-off or a source that is down"""
    sent_decision: int = 0
    """the newest decision that may have reached the node, as recorded by this run; the row may be newer"""
    accepted: bool = False
    """the node has begun the current decision"""
    dispatched_at: datetime | None = None
    """when the node first began"""
    away_since: datetime | None = None
    phase: Phase | None = None
    node_heard: bool = False
    """the node sent a sign of life that was not handled yet"""
    row_doubted: bool = False
    """the fleet monitor reports that the row has ended"""
    cancel: CancelRequest | None = None
    cancelled_by: str = ""
    cancel_until: datetime | None = None
    """how long the run still tries to deliver the cancel to an unreachable node"""
    store_failures: int = 0
    """consecutive times that PostgreSQL gave no permit, or had no row"""
    unadmitted_since: datetime | None = None
    """since when this run has no order"""
    has_slot: bool = False
    """the batch granted a slot after the node had been away"""
    has_backend: bool = False
    """the operation that installs the backend has succeeded"""


class OperationInput(Payload):
    request: OperationRequest
    policy: Policy = Policy()
    carried: RunState | None = None


class RowEnd(Payload):
    """The end recorded in the operation's row. The row is final: a run that reads it closes the same way."""

    state: State
    reason: Reason | None = None
    detail: str = ""
    before: Installed | None = None
    after: Installed | None = None
    signed_outcome: str | None = None
    """the outcome as the node signed it"""


class OperationResult(Payload):
    """The result of the run; the Temporal Web UI shows it."""

    op_id: str
    state: State
    reason: Reason | None = None
    detail: str = ""
    before: Installed | None = None
    after: Installed | None = None
    signed_outcome: str | None = None
    """the outcome as the node signed it"""


# signals and query of BackendOperation ------------------------------------------------------------------------

SIGNAL_CANCEL = "cancel"
SIGNAL_NODE_BACK = "node_back"
SIGNAL_OUTCOME = "outcome"
SIGNAL_PHASE = "phase"
SIGNAL_TURN = "turn"
SIGNAL_ROW_ENDED = "row_ended"
QUERY_STATUS = "status"


class NodeBack(Payload):
    """Signal `node_back`: the node sends heartbeats again."""

    node_id: str


class OutcomeReport(Payload):
    """Signal `outcome`: the node reported an end without an attached worker. It wakes the run, which asks the node."""

    op_id: str


class RowEndNotice(Payload):
    """Signal `row_ended`: the operation's row has ended; the run reads it, and closes the same way."""

    op_id: str


class SlotGranted(Payload):
    """Signal `turn`: the batch grants this member a slot."""

    op_id: str


class PhaseReport(Payload):
    """Signal `phase`: the node has begun, or entered its next phase; at most one in 10 s."""

    op_id: str
    phase: Phase


class Status(Payload):
    """Result of the query `status`."""

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
REPORT_NOT_ADMITTED = "report_not_admitted"
WATCH_FLEET = "watch_fleet"


class Projection(Payload):
    """One transition: the new row of the operation and its event."""

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
    """A run as Temporal describes it, without a query to a worker."""

    workflow_id: str
    run_id: str
    is_open: bool
    op_id: str = ""
    intent: str = ""


class Transitions(Payload):
    """Input of `record`: every transition since the last write, oldest first, written in one transaction."""

    rows: tuple[Projection, ...]
    only_unsent: bool = False
    """an end without an answer from the node: refused if a command may have reached the node"""


class RecordResult(Payload):
    """Output of `record`."""

    written: bool = True
    end: RowEnd | None = None
    """set if the write was refused because the operation had already ended"""


class FleetWatch(Payload):
    """Input of `watch_fleet` and of the workflow around it."""

    tick: Duration = timedelta(seconds=15)
    heartbeat_timeout: Duration = timedelta(seconds=15)
    """after a worker died, another one continues the watch within 30 s"""
    rest: Duration = Field(default=timedelta(hours=1))
    """how long one activity runs before the workflow continues as new"""
