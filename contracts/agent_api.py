"""Messages between an agent and the API over HTTP: registration, leaving, and access to a source.

Both ends use them, as those of `contracts/nats`. A LocalAI worker sends the same registration.
"""

from datetime import datetime
from typing import Any

from pydantic import Field, model_validator

from nodesmith.contracts.http.shared import Shape
from nodesmith.contracts.nats.presence import Resources
from nodesmith.contracts.node_fields import MOST_REPLICAS, CheckedBudget, CheckedBytes, CheckedLabels
from nodesmith.domain.node import NodeStatus, NodeType, Protocol


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
    certificate_request: str = Field(default="", max_length=4096)
    """in PEM, for the key of the node's forwarder; empty: the node wants no certificate"""

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
    certificate: str | None = None
    """in PEM: what the node's forwarder shows to gateways; it is for this node's names only"""
    certificate_ca: str | None = None
    """in PEM: the CA of gateways and forwarders"""


class LeaveBody(Shape):
    """Body of a node's own drain or deregister; LocalAI sends none."""

    boot_id: str = Field(default="", max_length=255)


class SourceAccess(Shape):
    """`GET /api/node/{id}/sources?host=`: how a node reaches a source. Read at each use, never stored."""

    host: str
    """name, or name:port"""
    username: str = ""
    password: str = ""
    ca: str = ""
    """additional trusted certificates in PEM"""
    proxy: str = ""
    realms: list[str] = Field(default_factory=list)
    """hosts of token services that may get the password too"""
