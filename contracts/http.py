"""HTTP shapes: LocalAI's fields with LocalAI's names, ours beside them."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from contracts.messages import MOST_BYTES, CancelMode, Installed, Resources, UpgradePolicy
from domain import budget
from domain import labels as labelling
from domain.errors import InvalidRequest
from domain.node import NodeStatus, NodeType, Protocol
from domain.operation import Kind, Phase, Reason, State
from domain.wire import WireEnum

MOST_REPLICAS = 10_000

Labels = Annotated[dict[str, str], BeforeValidator(lambda value: value or {})]
"""LocalAI workers may send null for an empty map."""


def _in_range(labels: dict[str, str]) -> dict[str, str]:
    if wrong := labelling.complaint(labels):
        raise ValueError(wrong)
    return labels


def readable_budget(written: str) -> str:
    try:
        budget.parse(written)
    except InvalidRequest as refused:
        raise ValueError(refused.message) from refused
    return written


CheckedLabels = Annotated[Labels, AfterValidator(_in_range)]
CheckedBudget = Annotated[str, Field(max_length=64), AfterValidator(readable_budget)]
CheckedBytes = Annotated[int | None, Field(ge=0, le=MOST_BYTES)]


class Shape(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Problem(Shape):
    """RFC 9457, plus `error` in the shape that the old clients of that path read."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    remedy: str = ""
    error: Any = None


# nodes --------------------------------------------------------------------------------------------------------


class RegisterRequest(Resources):
    """`POST /api/node/register`: the first registration, a renewal of credentials, or a new boot."""

    name: str = Field(min_length=1, max_length=255)
    node_type: str = "backend"
    address: str = Field(default="", max_length=512)
    http_address: str = Field(default="", max_length=512)
    max_replicas_per_model: int = Field(default=1, ge=0, le=MOST_REPLICAS)
    total_vram: CheckedBytes = None
    available_vram: CheckedBytes = None
    total_ram: CheckedBytes = None
    available_ram: CheckedBytes = None
    total_disk: CheckedBytes = None
    available_disk: CheckedBytes = None
    gpu_vendor: str | None = Field(default=None, max_length=255)
    gpu_compute_capability: str | None = Field(default=None, max_length=255)
    capability: str | None = Field(default=None, max_length=255)
    vram_budget: CheckedBudget = ""
    labels: CheckedLabels = Field(default_factory=dict)
    token: str = ""
    # protocol 2
    protocol: Protocol = Protocol.LOCALAI
    machine_id: str = Field(default="", max_length=255)
    boot_id: str = Field(default="", max_length=255)
    agent_version: str = Field(default="", max_length=255)


class RegisterResponse(Shape):
    id: str
    name: str
    node_type: NodeType
    status: NodeStatus
    created_at: datetime
    api_token: str | None = None
    """the node's own credential, given once"""
    nats_jwt: str | None = None
    nats_user_seed: str | None = None
    nats_url: str | None = None
    expires_at: datetime | None = None
    """when the NATS credential ends; register again before"""


class Approved(RegisterResponse):
    message: str = "node approved"


class NodeView(Resources):
    """One node as the registry knows it; `status` is derived at the moment of reading."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    name: str
    node_type: NodeType
    protocol: Protocol
    address: str = ""
    http_address: str = ""
    max_replicas_per_model: int = 1
    max_replicas_per_model_manually_set: bool = False
    vram_budget: str = ""
    vram_budget_bytes: int | None = None
    """what the budget comes to on this card; `available_vram` is never more"""
    vram_budget_manually_set: bool = False
    reserved_vram: int = 0
    status: NodeStatus
    approved_at: datetime | None = None
    drained_at: datetime | None = None
    leaving_at: datetime | None = None
    """the node itself is about to go; an admin's drain is `drained_at`"""
    left_at: datetime | None = None
    unreachable_since: datetime | None = None
    rival_seen_at: datetime | None = None
    """when a second process last claimed to be this node; it was refused"""
    last_heartbeat: datetime | None = None
    boot_id: str = ""
    agent_version: str = ""
    labels: Labels = Field(default_factory=dict)
    open_operations: int = 0
    model_count: int = 0
    in_flight_count: int = 0
    created_at: datetime
    updated_at: datetime


class Message(Shape):
    message: str


class Because(Shape):
    """Why somebody asks for a change; kept with it."""

    reason: str = Field(default="", max_length=500)


class Running(WireEnum):
    """What becomes of operations that a drained node is busy with."""

    FINISH = "finish"
    CANCEL = "cancel"
    UNKNOWN = "unknown"


class LifeChanged(Message):
    """A node was drained, resumed or removed; `cancelled` are the operations that were told to end."""

    status: NodeStatus | None = None
    cancelled: list[str] = Field(default_factory=list)


class Leaving(Shape):
    """Body of a node's own drain or deregister; LocalAI sends none."""

    boot_id: str = Field(default="", max_length=255)


# operations ---------------------------------------------------------------------------------------------------


class InstallRequest(Shape):
    """`POST /api/nodes/{id}/backends/install`: by gallery name, or by uri."""

    backend: str = Field(default="", max_length=255)
    backend_galleries: str = ""
    uri: str = Field(default="", max_length=2048)
    name: str = Field(default="", max_length=255)
    alias: str = Field(default="", max_length=255)
    # ours
    version: str = Field(default="", max_length=128)
    sha256: str = Field(default="", pattern=r"^(sha256:)?[0-9a-fA-F]{64}$|^$")
    force: bool = False
    reason: str = Field(default="", max_length=500)
    on_drained: bool = False
    """on a node that is drained, on purpose"""
    start: bool = False
    """start the backend afterwards; nothing is started unless asked"""
    upgrade_policy: UpgradePolicy = UpgradePolicy.RESTART
    """how running processes are replaced"""
    wait_for_node_s: float | None = Field(default=None, gt=0, le=90 * 86400)
    deadline_s: float | None = Field(default=None, gt=0, le=90 * 86400)


class JobAccepted(Shape):
    """202: the operation is durable from here on."""

    jobID: str  # noqa: N815 - LocalAI's name
    statusUrl: str  # noqa: N815
    message: str
    joined: bool = False
    """the same operation was running already: this is its id"""
    operation: str = ""
    """where its whole story is: /api/operations/{id}"""


class JobStatus(Shape):
    """LocalAI's `GET /api/backends/job/{id}`: always 200, `queued` for an id nobody knows."""

    progress: float = 0
    message: str = "Operation queued"
    galleryElementName: str = ""  # noqa: N815
    processed: bool = False
    deletion: bool = False
    queued: bool = True
    error: str | None = None
    completed: bool | None = None


class ProgressView(Shape):
    """The gauge: the last value that came by."""

    phase: Phase | None = None
    bytes_done: int = 0
    bytes_total: int = 0
    percentage: float = 0.0
    rate: float = 0.0
    eta_s: float | None = None
    at: datetime | None = None


class OperationView(Shape):
    """One operation, from its row. In a list `progress` is LocalAI's number, and the gauge is in `gauge`."""

    op_id: str
    kind: Kind
    node_id: str
    node_name: str
    backend: str
    family: str
    version: str = ""
    uri: str = ""
    sha256: str = ""
    force: bool = False
    state: State
    reason: Reason | None = None
    detail: str = ""
    until: datetime | None = None
    attempt: int = 0
    progress: ProgressView = Field(default_factory=ProgressView)
    stalled: bool = False
    """derived on read: running, and no byte for 60 s"""
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


class OperationDetail(OperationView):
    timeline: list[OperationEvent] = Field(default_factory=list)


class OperationList(Shape):
    operations: list[dict[str, Any]]
    """LocalAI's entry (id, name, jobID, progress, taskType ...) and ours in one object"""
    stale_since: datetime | None = None


class CancelBody(Shape):
    reason: str = Field(default="", max_length=500)
    mode: CancelMode = CancelMode.DISCARD
    force: bool = False


class LocalaiJob(Shape):
    """LocalAI's answer to a route that concerns every node."""

    jobID: str  # noqa: N815
    uuid: str
    statusUrl: str  # noqa: N815
    message: str


class JobReference(Shape):
    """The same, on the routes without `/api`; `uuid` is what LocalAI's own clients look for."""

    id: str
    uuid: str
    status_url: str


class ApplyRequest(Shape):
    id: str = Field(min_length=1, max_length=255)
    force: bool = False


class ExternalRequest(Shape):
    uri: str = Field(min_length=1, max_length=2048)
    name: str = Field(default="", max_length=255)
    alias: str = Field(default="", max_length=255)


class HoldBody(Shape):
    reason: str = Field(min_length=1, max_length=500)


class HoldView(Shape):
    """Whether work is held back, by whom and why."""

    held: bool
    reason: str = ""
    by: str = ""
    since: datetime | None = None


class RetryBody(Shape):
    reason: str = Field(default="", max_length=500)


class CancelAccepted(Shape):
    success: bool = True
    message: str = "Operation cancelled"
    state: State
    note: str = ""


class Dismissed(Shape):
    success: bool
    message: str


class ProgressTick(ProgressView):
    """A tick on the event stream: no id, safe to lose."""

    op_id: str
    node_id: str
    backend: str = ""


class BackendEntry(Shape):
    """One backend of the catalogue."""

    name: str
    version: str
    description: str = ""
    uri: str
    sha256: str = ""
    size: int = 0
    gallery: str = ""


class BackendCatalogue(Shape):
    backends: list[BackendEntry]


class SourceAccess(Shape):
    """`GET /api/node/{id}/sources?host=`: how a node reaches a source. Asked for at use, never kept."""

    host: str
    """name, or name:port"""
    username: str = ""
    password: str = ""
    ca: str = ""
    """certificates in PEM that are trusted beside the system's"""
    proxy: str = ""


class Readiness(Shape):
    ready: bool
    missing: dict[str, str] = Field(default_factory=dict)
    """what does not answer -> what that means"""


class SignInLink(Shape):
    url: str
    expires_at: datetime
