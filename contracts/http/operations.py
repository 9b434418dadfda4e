"""HTTP shapes of operations: request, view, cancel, history, pending work and bulk orders."""

from datetime import datetime
from enum import StrEnum, auto
from typing import Any, Self

from pydantic import Field, model_validator

from nodesmith.contracts.http.shared import Address, Page, Shape
from nodesmith.contracts.names import PlainName
from nodesmith.contracts.nats.messages import CancelMode, Installed, UpgradePolicy
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Gauge, Phase, Reason, State


class InstallRequest(Shape):
    """`POST /api/nodes/{id}/backends/install`: by gallery name, or by uri."""

    backend: PlainName = Field(default="", max_length=255)
    backend_galleries: str = ""
    uri: PlainName = Field(
        default="",
        max_length=2048,
        description="An archive (http, https, file) or host/name:tag of a registry, with oci:// or without a scheme.",
    )
    name: PlainName = Field(default="", max_length=255)
    alias: PlainName = Field(default="", max_length=255)
    # our fields
    version: PlainName = Field(default="", max_length=128)
    sha256: str = Field(
        default="",
        pattern=r"^(sha256:)?[0-9a-fA-F]{64}$|^$",
        description="Required for an archive by uri; in a registry, the digest to install, regardless of the tag.",
    )
    force: bool = False
    reason: str = Field(default="", max_length=500)
    on_drained: bool = False
    """allow a drained node"""
    start: bool = False
    """start the backend afterwards; nothing is started by default"""
    upgrade_policy: UpgradePolicy = UpgradePolicy.RESTART
    """how running processes are replaced"""
    wait_for_node_s: float | None = Field(default=None, gt=0, le=90 * 86400)
    deadline_s: float | None = Field(default=None, gt=0, le=90 * 86400)
    max_attempts: int | None = Field(
        default=None, ge=1, le=1000, description="Attempts on one node before it gives up; default: the settings."
    )


class OperationBody(InstallRequest):
    """`POST /api/v1/operations`: what to do with a backend, on which node."""

    kind: Kind
    """install, upgrade, rollback or remove"""
    node: str = Field(min_length=1, max_length=255)
    """id or name of the node"""


class OperationAccepted(Shape):
    """202: the operation is durable. `Location` is its address."""

    op_id: str
    node_id: str
    node_name: str
    message: str
    """what was accepted, as a sentence"""
    joined: bool = False
    """the same operation was open already; this is its id"""
    limits_not_applied: list[str] = Field(default_factory=list)
    """of a request that joined an open operation: requested limits that do not apply, as that one keeps its own"""
    repeated: bool = False
    """a repeated request with the same `Idempotency-Key`: this is the first answer"""


class JobAccepted(Shape):
    """202: the operation is durable."""

    jobID: str  # noqa: N815 - LocalAI's name
    statusUrl: str  # noqa: N815
    message: str
    joined: bool = False
    """the same operation was running already; this is its id"""
    limits_not_applied: list[str] = Field(default_factory=list)
    """of a request that joined a running operation: requested limits that do not apply, as that one keeps its own"""
    repeated: bool = False
    """true: a repeated request with the same `Idempotency-Key`; this is the first response"""
    operation: str = ""
    """its details: /api/operations/{id}"""
    node: str = ""
    node_id: str = ""


class ProgressView(Shape):
    """The gauge: the last value received."""

    phase: Phase | None = None
    bytes_done: int = 0
    bytes_total: int = 0
    percentage: float = 0.0
    rate: float = 0.0
    eta_s: float | None = None
    at: datetime | None = None

    def during(self, state: State) -> "ProgressView":
        """Return the gauge as valid in that state, for a client that learned of the state from an event."""
        return ProgressView.model_validate(Gauge(**dict(self)).during(state), from_attributes=True)


class OperationView(Shape):
    """One operation, from its row. In a list `progress` is LocalAI's number, and the gauge is in `gauge`."""

    op_id: str
    kind: Kind
    node_id: str
    node_name: str
    backend: str
    family: str
    version: str = ""
    uri: Address = ""
    sha256: str = ""
    force: bool = False
    verified: str = ""
    """how the artifact was verified, and which keys signed it"""
    state: State
    reason: Reason | None = None
    detail: str = ""
    until: datetime | None = None
    attempt: int = 0
    progress: ProgressView = Field(default_factory=ProgressView)
    stalled: bool = False
    """computed on read: running, and no byte for 60 s"""
    before: Installed | None = None
    after: Installed | None = None
    changed: bool | None = None
    bytes_fetched: int = 0
    bytes_reused: int = 0
    requested_by: str = ""
    note: str = ""
    cancelled_by: str = ""
    batch_id: str | None = None
    retry_of: str | None = None
    created_at: datetime
    dispatched_at: datetime | None = None
    ended_at: datetime | None = None
    dismissed_at: datetime | None = None
    workflow_id: str = ""
    run_id: str = ""
    message: str = ""
    """state, reason and detail as one sentence"""
    remedy: str = ""
    temporal_url: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read_list_entry(cls, values: Any) -> Any:
        if isinstance(values, dict) and "gauge" in values:
            return {**values, "progress": values["gauge"]}
        return values


class OperationEvent(Shape):
    """One change of state; `id` is the SSE id."""

    id: int
    op_id: str
    node_id: str
    node_name: str
    backend: str
    kind: Kind
    batch_id: str | None = None
    state: State
    reason: Reason | None = None
    detail: str = ""
    until: datetime | None = None
    attempt: int = 0
    at: datetime
    message: str = ""


RESET = "reset"
"""name of the stream event that carries a StreamReset"""


class StreamReset(Shape):
    """The event numbers went back: an older copy of the database was restored. Reload what you show."""

    last_event_id: int
    """the stream continues after this number"""


class OperationDetail(OperationView):
    timeline: list[OperationEvent] = Field(default_factory=list)


class OperationScope(StrEnum):
    """Which operations a list has, before its filters."""

    LIVE = auto()
    """open, or ended badly and not dismissed"""
    OPEN = auto()
    ENDED = auto()
    """the history: the latest end first, kept for 90 days"""
    ALL = auto()


class OperationPage(Page[OperationView]):
    last_event_id: int = Field(
        default=0, description="the newest event in the same snapshot: a stream from here has every later change"
    )
    stale_since: datetime | None = Field(
        default=None, description="Temporal has not answered since then: open operations may have gone on"
    )


class CancelBody(Shape):
    reason: str = Field(default="", max_length=500)
    mode: CancelMode = CancelMode.DISCARD
    force: bool = False


class HoldBody(Shape):
    reason: str = Field(min_length=1, max_length=500)


class HoldView(Shape):
    """Whether work is held, by whom and why."""

    held: bool
    reason: str = ""
    by: str = ""
    since: datetime | None = None


class RetryBody(Shape):
    reason: str = Field(default="", max_length=500)


class CancelAccepted(Shape):
    """202: the cancel is durable."""

    op_id: str
    state: State
    """`cancelling` until the node has confirmed it, or the end that the operation had reached before"""
    note: str = ""
    """what this cancel cannot do"""


class ProgressTick(ProgressView):
    """A tick on the event stream: no id, safe to lose."""

    op_id: str
    node_id: str
    backend: str = ""


class OperationFilter(Shape):
    """Which operations; omitted fields restrict nothing."""

    node: str | None = Field(default=None, max_length=255, description="Id or name of the node.")
    backend: str | None = Field(default=None, max_length=255, description="Name of the backend.")
    state: State | None = None
    batch: str | None = Field(default=None, max_length=64, description="Id of the batch.")

    @property
    def is_empty(self) -> bool:
        return all(value is None for value in (self.node, self.backend, self.state, self.batch))


class BulkBody(OperationFilter):
    """`POST /api/operations/cancel` and `/dismiss`: at least one condition; `preview` changes nothing."""

    preview: bool = False
    reason: str = Field(default="", max_length=500)
    mode: CancelMode = CancelMode.DISCARD

    @model_validator(mode="after")
    def _is_meant(self) -> Self:
        if self.is_empty:
            raise ValueError("Name at least one of: node, backend, state, batch.")
        return self


class BulkItem(Shape):
    """One operation that the filter matched."""

    op_id: str
    node_name: str
    backend: str
    kind: Kind
    state: State
    accepted: bool | None = None
    """None in a preview"""
    note: str = ""
    """why it was refused, or a note"""


class BulkResult(Shape):
    preview: bool
    matched: int
    accepted: int = 0
    operations: list[BulkItem] = Field(default_factory=list)


class PendingWork(Shape):
    """Open operations of one node, or of one backend."""

    name: str
    node_id: str = ""
    total: int = 0
    states: dict[str, int] = Field(default_factory=dict)
    reasons: dict[str, int] = Field(default_factory=dict)
    """reason for waiting -> number of operations"""
    oldest: datetime | None = None
    next_try: datetime | None = None
    """when the first of them stops waiting"""


class PendingView(Shape):
    total: int
    nodes: list[PendingWork]
    backends: list[PendingWork]


class HistoryCleared(Shape):
    cleared: int
    """number of operations that the history no longer shows"""


class StopBody(Shape):
    """`POST /api/nodes/{id}/backends/stop`: one backend, one model, or everything if nothing is named."""

    backend: PlainName = Field(default="", max_length=255)
    force: bool = False
    reason: str = Field(default="", max_length=500)


class Done(Shape):
    success: bool
    message: str = ""
