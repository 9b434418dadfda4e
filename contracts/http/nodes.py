"""HTTP shapes of nodes: registration and view, with LocalAI's field names."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from nodesmith.contracts.http.shared import Message, Page, Shape
from nodesmith.contracts.nats.presence import BackendConfinement, Resources
from nodesmith.contracts.nats.readings import MOST_BYTES
from nodesmith.domain import budget
from nodesmith.domain import labels as labelling
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.node import NodeStatus, NodeType, Protocol
from nodesmith.domain.wire_enum import WireEnum

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
    nats_key: str = Field(default="", max_length=64)
    """the public key of our own agent; it signs the node's reports, and its seed stays on the node"""

    @model_validator(mode="before")
    @classmethod
    def _empty_is_left_out(cls, sent: Any) -> Any:
        """Drop null and empty types: to a LocalAI worker, a Go program, they equal absent fields."""
        if not isinstance(sent, dict):
            return sent
        return {key: value for key, value in sent.items() if value is not None and (key, value) != ("node_type", "")}


class RegisterResponse(Shape):
    id: str
    name: str
    node_type: NodeType
    status: NodeStatus
    created_at: datetime
    api_token: str | None = None
    """the node's own credential, returned once"""
    nats_jwt: str | None = None
    nats_user_seed: str | None = None
    """only for a LocalAI worker: our own agents generate their key"""
    nats_url: str | None = None
    expires_at: datetime | None = None
    """when the NATS credential expires; the node registers again before that"""
    trust_version: int = 0
    """version of the newest trust list at /api/v1/trust"""
    newest_orders: dict[str, int] | None = None
    """family -> issue time of the newest order that ended on this node; an agent refuses older ones"""


class Approved(RegisterResponse):
    message: str = "node approved"


class NodeView(Shape):
    """One node in the registry; `status` is computed on read.

    The fields of `Resources` have plain types: what a node reports was checked when it arrived, and lists are long.
    """

    total_vram: int | None = None
    """bytes of graphics memory"""
    available_vram: int | None = None
    """free bytes of graphics memory, within the budget"""
    total_ram: int | None = None
    """bytes of memory"""
    available_ram: int | None = None
    """free bytes of memory"""
    total_disk: int | None = None
    """bytes of the disk with the backends"""
    available_disk: int | None = None
    """free bytes of that disk"""
    gpu_vendor: str | None = None
    """nvidia, amd, intel, ..."""
    gpu_compute_capability: str | None = None
    """of an NVIDIA card: its compute capability"""
    capability: str | None = None
    """its hardware, as galleries name it"""
    confinement: BackendConfinement | None = None
    """how its backends are confined, reported at registration; not by LocalAI workers"""
    id: str
    """id of the node; it stays when the node registers again"""
    name: str
    """its name, unique in the fleet"""
    node_type: NodeType
    """backend, or agent: runs no backends"""
    protocol: Protocol
    """2: our agent; 1: a LocalAI worker"""
    address: str = ""
    """where its backends are reached"""
    http_address: str = ""
    """where its own HTTP server is reached"""
    max_replicas_per_model: int = 1
    """replicas of one model that it may run"""
    max_replicas_per_model_manually_set: bool = False
    """an admin has overridden the node's value"""
    vram_budget: str = ""
    """graphics memory that backends may use, as it was written"""
    vram_budget_bytes: int | None = None
    """the budget in bytes on this card; `available_vram` is its unused part"""
    vram_budget_manually_set: bool = False
    """an admin has overridden the node's value"""
    reserved_vram: int = 0
    """bytes that replicas have reserved and `available_vram` does not show yet"""
    reserved_memory: int = 0
    """bytes that its replicas hold, all together: of graphics memory, on a node without it of main memory"""
    status: NodeStatus
    """computed at the time of the request"""
    approved_at: datetime | None = None
    """when it was admitted; null: it waits for approval"""
    drained_at: datetime | None = None
    """when an admin drained it; null: it is not drained"""
    leaving_at: datetime | None = None
    """the node itself is about to leave; an admin's drain is `drained_at`"""
    left_at: datetime | None = None
    """when it deregistered; null: it did not"""
    unreachable_since: datetime | None = None
    """since when it does not answer commands; null: it does"""
    rival_seen_at: datetime | None = None
    """when a second process last tried to register as this node; it was refused"""
    last_heartbeat: datetime | None = None
    """when it last sent a heartbeat"""
    boot_id: str = ""
    """identifies the current process of the node"""
    boot_at: datetime | None = None
    """when the current process of the node first registered"""
    agent_version: str = ""
    """version of its agent"""
    trust_version: int = 0
    """version of the trust list in the last heartbeat; 0: not reported"""
    labels: dict[str, str] = Field(default_factory=dict)
    """effective labels: the admin's, the node's own, and the automatic ones"""
    open_operations: int = 0
    """operations that have not ended"""
    model_count: int = 0
    """loaded replicas of deployments"""
    in_flight_count: int = 0
    """open calls on its replicas, as gateways and routers count them"""
    created_at: datetime
    """when it first registered"""
    updated_at: datetime
    """when its row last changed"""


class NodePage(Page[NodeView]):
    total: int = Field(default=0, description="nodes on all pages")


class DrainPolicy(WireEnum):
    """What happens to running operations of a drained node."""

    FINISH = "finish"
    CANCEL = "cancel"
    UNKNOWN = "unknown"


class LifecycleChanged(Message):
    """A node was drained, resumed or removed; `cancelled` lists the operations that were cancelled."""

    status: NodeStatus | None = None
    """status of the node afterwards; null: it was removed"""
    cancelled: list[str] = Field(default_factory=list)
    """ids of the operations that were cancelled"""


class LeaveBody(Shape):
    """Body of a node's own drain or deregister; LocalAI sends none."""

    boot_id: str = Field(default="", max_length=255)
