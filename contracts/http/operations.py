"""HTTP shapes of operations: request, view, events and cancel."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from nodesmith.contracts.http.shared import Address, Page, Shape, example, one_of_ours
from nodesmith.contracts.names import PlainName
from nodesmith.contracts.nats.messages import CancelMode, Installed, UpgradePolicy
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Gauge, Phase, Reason, State

RequestedKind = Annotated[Kind, AfterValidator(one_of_ours)]


class InstallRequest(Shape):
    """What to do with a backend: by gallery name, or by uri."""

    model_config = example(backend="echo")

    backend: PlainName = Field(default="", max_length=255)
    """name of the backend, or gallery@name"""
    uri: PlainName = Field(
        default="",
        max_length=2048,
        description="An archive (http, https, file) or host/name:tag of a registry, with oci:// or without a scheme.",
    )
    name: PlainName = Field(default="", max_length=255)
    """name under which an install by uri is stored"""
    alias: PlainName = Field(default="", max_length=255)
    """another name for it on the node"""
    version: PlainName = Field(default="", max_length=128)
    """the version; default: the newest"""
    sha256: str = Field(
        default="",
        pattern=r"^(sha256:)?[0-9a-fA-F]{64}$|^$",
        description="Required for an archive by uri; in a registry, the digest to install, regardless of the tag.",
    )
    force: bool = False
    """do it even if it is installed already"""
    reason: str = Field(default="", max_length=500)
    """why, kept in the operation and in the audit trail"""
    on_drained: bool = False
    """allow a drained node"""
    start: bool = False
    """start the backend afterwards; nothing is started by default"""
    upgrade_policy: Annotated[UpgradePolicy, AfterValidator(one_of_ours)] = UpgradePolicy.RESTART
    """how running processes are replaced"""
    wait_for_node_s: float | None = Field(default=None, gt=0, le=90 * 86400)
    """seconds to wait for a node that is away; default: the settings"""
    deadline_s: float | None = Field(default=None, gt=0, le=90 * 86400)
    """seconds after which it ends, whatever it waits for; default: none"""
    max_attempts: int | None = Field(
        default=None, ge=1, le=1000, description="Attempts on one node before it gives up; default: the settings."
    )


class OperationBody(InstallRequest):
    """`POST /api/v1/operations`: what to do with a backend, on which node."""

    model_config = example(kind="install", node="gpu-1", backend="echo", reason="INC-42")

    kind: RequestedKind
    """install, upgrade, rollback or remove"""
    node: str = Field(min_length=1, max_length=255)
    """id or name of the node"""

    def without_target(self) -> InstallRequest:
        """The request as such: the same under the id and the name of the node."""
        return InstallRequest.model_validate(self.model_dump(include=set(InstallRequest.model_fields)))


class OperationAccepted(Shape):
    """202: the operation is durable. `Location` is its address."""

    op_id: str
    """id of the operation"""
    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    message: str
    """what was accepted, as a sentence"""
    joined: bool = False
    """the same operation was open already; this is its id"""
    limits_not_applied: list[str] = Field(default_factory=list)
    """of a request that joined an open operation: requested limits that do not apply, as that one keeps its own"""
    repeated: bool = False
    """a repeated request with the same `Idempotency-Key`: this is the first answer"""


class ProgressView(Shape):
    """The gauge: the last value received."""

    phase: Phase | None = None
    """what the node does at the moment"""
    bytes_done: int = 0
    """bytes downloaded or unpacked"""
    bytes_total: int = 0
    """bytes in all; 0: not known"""
    percentage: float = 0.0
    """progress of the phase, 0 to 100"""
    rate: float = 0.0
    """bytes per second"""
    eta_s: float | None = None
    """seconds until the phase ends, at this rate"""
    at: datetime | None = None
    """when the node reported it"""

    def during(self, state: State) -> "ProgressView":
        """Return the gauge as valid in that state, for a client that learned of the state from an event."""
        return ProgressView.model_validate(Gauge(**dict(self)).during(state), from_attributes=True)


class OperationView(Shape):
    """One operation."""

    op_id: str
    """id of the operation"""
    kind: Kind
    """install, upgrade, rollback or remove"""
    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    backend: str
    """name of the backend"""
    family: str
    """the name under which it is locked and stored on a node"""
    version: str = ""
    """the version that was requested; empty if none was named"""
    uri: Address = ""
    """where the artifact is"""
    sha256: str = ""
    """digest that the artifact must have"""
    force: bool = False
    """it is done even if it is done already"""
    verified: str = ""
    """how the artifact was verified, and which keys signed it"""
    state: State
    """where it stands"""
    reason: Reason | None = None
    """why it waits, or ended"""
    detail: str = ""
    """what happened, in words"""
    until: datetime | None = None
    """until when it waits, or when the next attempt begins"""
    attempt: int = 0
    """number of the current attempt; 0: none yet"""
    progress: ProgressView = Field(default_factory=ProgressView)
    """the gauge: the last value received"""
    stalled: bool = False
    """computed on read: running, and no byte for 60 s"""
    before: Installed | None = None
    """what was installed before"""
    after: Installed | None = None
    """what is installed afterwards"""
    changed: bool | None = None
    """false: the node had it already; null: it has not ended"""
    bytes_fetched: int = 0
    """bytes downloaded"""
    bytes_reused: int = 0
    """bytes that an earlier attempt had downloaded"""
    requested_by: str = ""
    """who requested it"""
    note: str = ""
    """why, as the caller put it"""
    cancelled_by: str = ""
    """who cancelled it"""
    batch_id: str | None = None
    """the batch that started it"""
    retry_of: str | None = None
    """the operation that it retries"""
    created_at: datetime
    """when it was requested"""
    dispatched_at: datetime | None = None
    """when its order was first sent to the node"""
    ended_at: datetime | None = None
    """when it ended; null: it is open"""
    dismissed_at: datetime | None = None
    """when it was dismissed from the live list"""
    workflow_id: str = ""
    """id of its workflow in Temporal"""
    run_id: str = ""
    """id of its run in Temporal"""
    message: str = ""
    """state, reason and detail as one sentence"""
    remedy: str = ""
    """what to do about it; empty if there is nothing"""
    temporal_url: str = ""
    """its run in the Temporal Web UI; empty without one"""


class OperationEvent(Shape):
    """One change of state; `id` is the SSE id."""

    id: int
    """number of the event; later ones are greater"""
    op_id: str
    """id of the operation"""
    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    backend: str
    """name of the backend"""
    kind: Kind
    """install, upgrade, rollback or remove"""
    batch_id: str | None = None
    """the batch that started it"""
    state: State
    """the new state"""
    reason: Reason | None = None
    """why it waits, or ended"""
    detail: str = ""
    """what happened, in words"""
    until: datetime | None = None
    """until when it waits, or when the next attempt begins"""
    attempt: int = 0
    """number of the attempt"""
    at: datetime
    """when it changed"""
    message: str = ""
    """state, reason and detail as one sentence"""


RESET = "reset"
"""name of the stream event that carries a StreamReset"""


class StreamReset(Shape):
    """The event numbers went back: an older copy of the database was restored. Reload what you show."""

    last_event_id: int
    """the stream continues after this number"""


class OperationDetail(OperationView):
    timeline: list[OperationEvent] = Field(default_factory=list)
    """every change of state, the oldest first"""


class OperationPage(Page[OperationView]):
    last_event_id: int = Field(
        default=0, description="the newest event in the same snapshot: a stream from here has every later change"
    )
    stale_since: datetime | None = Field(
        default=None, description="Temporal has not answered since then: open operations may have gone on"
    )


class CancelBody(Shape):
    model_config = example(reason="wrong node")

    reason: str = Field(default="", max_length=500)
    """why, kept in the operation and in the audit trail"""
    mode: Annotated[CancelMode, AfterValidator(one_of_ours)] = CancelMode.DISCARD
    """discard what was downloaded, or keep it for a retry"""
    force: bool = False
    """do not wait for the node's confirmation"""


class RetryBody(Shape):
    model_config = example(reason="the disk was replaced")

    reason: str = Field(default="", max_length=500)
    """why, kept in the operation and in the audit trail"""


class CancelAccepted(Shape):
    """202: the cancel is durable."""

    op_id: str
    """id of the operation"""
    state: State
    """`cancelling` until the node has confirmed it, or the end that the operation had reached before"""
    note: str = ""
    """what this cancel cannot do"""


class ProgressTick(ProgressView):
    """A tick on the event stream: no id, safe to lose."""

    op_id: str
    """id of the operation"""
    node_id: str
    """id of the node"""
    backend: str = ""
    """name of the backend"""


class StopBody(Shape):
    """`POST /api/v1/nodes/{id}/backends/stop`: one backend, one model, or everything if nothing is named."""

    model_config = example(backend="echo")

    backend: PlainName = Field(default="", max_length=255)
    """name of a backend or model; empty: everything that runs"""
    force: bool = False
    """do not let the processes finish"""
    reason: str = Field(default="", max_length=500)
    """why, kept in the audit trail"""


class Done(Shape):
    success: bool
    message: str = ""
