"""Dispatch of an operation to its node: the task, and one type per answer, so that a reader handles each of them."""

from typing import Annotated, Literal

from pydantic import Field

from contracts.messages import CancelMode, Outcome
from contracts.temporal import OperationRequest, Payload, Policy, RowEnd
from domain.node import Protocol

DISPATCH = "dispatch"
"""a local activity: the first request of a decision, and the outcome of what ends at once"""
RUN_ON_NODE = "run_on_node"
"""follows the work on the node until its outcome"""
CANCEL_ON_NODE = "cancel_on_node"


class DispatchTask(Payload):
    """Input of `dispatch` and `run_on_node`."""

    request: OperationRequest
    policy: Policy
    decision: int
    """which decision to try this is; every re-execution of an undurable workflow task computes the same one"""
    accepted: bool = False
    """the node has begun this decision: a hold does not concern it"""


# What the permit says -----------------------------------------------------------------------------------------


class Granted(Payload):
    """The row is open and marked as sent: the command may go out."""

    kind: Literal["granted"] = "granted"


class Held(Payload):
    """An operator holds back what is not on a node yet; nothing was sent."""

    kind: Literal["held"] = "held"
    why: str


class RowEnded(Payload):
    """The operation has ended already; nothing was sent."""

    kind: Literal["row_ended"] = "row_ended"
    end: RowEnd


class NotAdmitted(Payload):
    """There is no row yet; nothing was sent."""

    kind: Literal["not_admitted"] = "not_admitted"


class CancelPending(Payload):
    """The row says that a cancel was accepted; nothing was sent. A run that forgot it carries it out."""

    kind: Literal["cancel_pending"] = "cancel_pending"
    by: str = ""


Permit = Granted | Held | RowEnded | NotAdmitted | CancelPending

# What came of a dispatch --------------------------------------------------------------------------------------


class Accepted(Payload):
    """The node has begun, or goes on with what it began before."""

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


class NodeUnreachable(Payload):
    """Nobody listens at the node: the last request was not delivered."""

    kind: Literal["node_unreachable"] = "node_unreachable"
    accepted: bool = False
    """the node had begun before it went away"""


class NatsUnreachable(Payload):
    """Our own link to NATS is down: nothing is known of the node."""

    kind: Literal["nats_unreachable"] = "nats_unreachable"
    accepted: bool = False


class StoreUnreachable(Payload):
    """PostgreSQL gave no permit, so nothing was sent."""

    kind: Literal["store_unreachable"] = "store_unreachable"
    accepted: bool = False


class Silent(Payload):
    """The command may have reached the node, and no answer came: timeout, lost link, or a worker that died."""

    kind: Literal["silent"] = "silent"
    accepted: bool = False


DispatchResult = (
    Accepted
    | Ended
    | Busy
    | Refused
    | Held
    | RowEnded
    | NotAdmitted
    | CancelPending
    | NodeUnreachable
    | NatsUnreachable
    | StoreUnreachable
    | Silent
)
"""closed: `match` over it ends with `assert_never`"""

Unsent = Held | RowEnded | NotAdmitted | CancelPending | StoreUnreachable
"""why a command was not even tried"""


class Dispatched(Payload):
    """Output of `dispatch` and `run_on_node`."""

    result: Annotated[DispatchResult, Field(discriminator="kind")]


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
    """The node's answer to a cancel."""

    stopped: bool = False
    stopped_after_s: float = 0.0
    outcome: Outcome | None = None
    """set when the cancel came too late"""
    unreachable: bool = False
    not_interruptible: bool = False
    """a LocalAI worker"""
    error: str = ""
    """why the node could not acknowledge it: it is asked again"""
