"""Dispatch of an operation to its node: the task, and one type per result, so that callers handle each of them."""

from typing import Annotated, Literal

from pydantic import Field

from nodesmith.contracts.nats.messages import CancelMode, Outcome
from nodesmith.contracts.nats.wire import Signed
from nodesmith.contracts.temporal.operations import OperationRequest, Payload, Policy, RowEnd
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import Reason, State

DISPATCH = "dispatch"
"""local activity: the first request of a decision, and the outcome of work that ends at once"""
RUN_ON_NODE = "run_on_node"
"""follows the work on the node until its outcome"""
CANCEL_ON_NODE = "cancel_on_node"


class DispatchTask(Payload):
    """Input of `dispatch` and `run_on_node`."""

    request: OperationRequest
    policy: Policy
    decision: int
    """number of the decision; a workflow task that is executed again computes the same number"""
    accepted: bool = False
    """the node has begun this decision: a hold no longer applies"""


# Results of the permit -----------------------------------------------------------------------------------------


class PermitGranted(Payload):
    """The row is open and marked as sent: the command may be sent, as in the order."""

    kind: Literal["granted"] = "granted"
    order: Signed


class HeldBack(Payload):
    """An operator's hold applies; nothing was sent."""

    kind: Literal["held"] = "held"
    why: str


class RowEnded(Payload):
    """The operation has already ended; nothing was sent."""

    kind: Literal["row_ended"] = "row_ended"
    end: RowEnd


class NotAdmitted(Payload):
    """The row or the order is missing; nothing was sent."""

    kind: Literal["not_admitted"] = "not_admitted"
    has_order: bool = True
    """only the row is missing: the run writes it. Without an order, the operation was never admitted"""


class CancelPending(Payload):
    """The row, or its batch's row, has an accepted cancel; nothing was sent. The run carries out the cancel."""

    kind: Literal["cancel_pending"] = "cancel_pending"
    by: str = ""
    why: Reason = Reason.REQUESTED
    detail: str = ""


Permit = PermitGranted | HeldBack | RowEnded | NotAdmitted | CancelPending

# Results of a dispatch --------------------------------------------------------------------------------------


class Accepted(Payload):
    """The node has begun, or continues what it began before."""

    kind: Literal["accepted"] = "accepted"


class Ended(Payload):
    """The node's own report: the only way to succeed, and the only failure that counts."""

    kind: Literal["ended"] = "ended"
    outcome: Outcome


class Busy(Payload):
    """Another operation holds this backend on the node."""

    kind: Literal["busy"] = "busy"
    op_id: str


class Refused(Payload):
    """The node will never do this."""

    kind: Literal["refused"] = "refused"
    why: str


class OrderNotValid(Payload):
    """The node cannot accept the order now: it has expired, or the node does not know its key yet."""

    kind: Literal["order_not_valid"] = "order_not_valid"
    why: str


class NodeUnreachable(Payload):
    """The node is not subscribed: the last request was not delivered."""

    kind: Literal["node_unreachable"] = "node_unreachable"
    accepted: bool = False
    """the node had begun before it went away"""


class NatsUnreachable(Payload):
    """The worker's link to NATS is down: the state of the node is unknown."""

    kind: Literal["nats_unreachable"] = "nats_unreachable"
    accepted: bool = False


class StoreUnreachable(Payload):
    """PostgreSQL gave no permit, so nothing was sent."""

    kind: Literal["store_unreachable"] = "store_unreachable"
    accepted: bool = False


class Silent(Payload):
    """The command may have reached the node, but no reply came: timeout, lost link, or a dead worker."""

    kind: Literal["silent"] = "silent"
    accepted: bool = False


DispatchResult = (
    Accepted
    | Ended
    | Busy
    | Refused
    | OrderNotValid
    | HeldBack
    | RowEnded
    | NotAdmitted
    | CancelPending
    | NodeUnreachable
    | NatsUnreachable
    | StoreUnreachable
    | Silent
)
"""closed union: `match` over it ends with `assert_never`"""

Unsent = HeldBack | RowEnded | NotAdmitted | CancelPending | StoreUnreachable
"""why a command was not sent"""


class Dispatched(Payload):
    """Output of `dispatch` and `run_on_node`."""

    result: Annotated[DispatchResult, Field(discriminator="kind")]


# Another operation -----------------------------------------------------------------------------------------------

WATCH_OPERATION = "watch_operation"


class OtherOperation(Payload):
    """Input of `watch_operation`: the operation that installs a backend."""

    op_id: str


class OtherEnd(Payload):
    """Output of `watch_operation`: how that operation ended."""

    state: State
    reason: Reason | None = None


# Cancel -------------------------------------------------------------------------------------------------------


class CancelOrder(Payload):
    """Input of `cancel_on_node`."""

    node_id: str
    node_name: str
    protocol: Protocol
    op_id: str
    family: str
    mode: CancelMode = CancelMode.DISCARD


class CancelResult(Payload):
    """The node's reply to a cancel."""

    stopped: bool = False
    stopped_after_s: float = 0.0
    outcome: Outcome | None = None
    """set if the cancel came too late"""
    unreachable: bool = False
    not_interruptible: bool = False
    """a LocalAI worker"""
    error: str = ""
    """why the node could not acknowledge the cancel; it is sent again"""
