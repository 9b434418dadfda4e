"""Nodes over HTTP: registration and the view of one, LocalAI's fields with LocalAI's names."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from contracts.http import Message, Shape
from contracts.messages import Resources
from contracts.readings import MOST_BYTES
from domain import budget
from domain import labels as labelling
from domain.errors import InvalidRequest
from domain.node import NodeStatus, NodeType, Protocol
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

    @model_validator(mode="before")
    @classmethod
    def _empty_is_left_out(cls, sent: Any) -> Any:
        """A LocalAI worker is a Go program: null, nothing and an empty type are the same to it."""
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
    """what the budget comes to on this card; `available_vram` is what of it is not in use"""
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
    boot_at: datetime | None = None
    """when the process that is the node registered first"""
    agent_version: str = ""
    labels: Labels = Field(default_factory=dict)
    open_operations: int = 0
    model_count: int = 0
    in_flight_count: int = 0
    created_at: datetime
    updated_at: datetime


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
