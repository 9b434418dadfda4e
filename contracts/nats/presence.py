"""NATS messages about a node and its process: heartbeat, resources, stop, and which boot is connected."""

from enum import auto
from typing import Annotated

from pydantic import Field, field_validator

from nodesmith.contracts.nats.loads import ReplicaReports
from nodesmith.contracts.nats.readings import (
    OR_NOT_KNOWN,
    Bytes,
    Caption,
    Captions,
    Decision,
    Identifier,
    Moment,
    OpIds,
    Word,
)
from nodesmith.contracts.nats.wire import DOCUMENTED, Message
from nodesmith.domain.wire_enum import WireEnum


class BackendConfinement(Message):
    """How the backends of a node are confined, as its agent determined at start-up."""

    model_config = DOCUMENTED

    mode: Caption = ""
    """on, off or require"""
    landlock_abi: Decision = 0
    """0: the kernel has no Landlock"""
    user: Caption = ""
    """the user that runs the backends"""
    missing: Captions = Field(default_factory=list)
    """what backends can reach although they should not"""


class Resources(Message):
    """A node's resources; 0 means none, None means unknown. Field names are LocalAI's."""

    model_config = DOCUMENTED

    total_vram: Bytes = None
    """bytes of graphics memory"""
    available_vram: Bytes = None
    """free bytes of graphics memory, within the budget"""
    total_ram: Bytes = None
    """bytes of memory"""
    available_ram: Bytes = None
    """free bytes of memory"""
    total_disk: Bytes = None
    """bytes of the disk with the backends"""
    available_disk: Bytes = None
    """free bytes of that disk"""
    gpu_vendor: Word = None
    """nvidia, amd, intel, ..."""
    gpu_compute_capability: Word = None
    """of an NVIDIA card: its compute capability"""
    capability: Word = None
    """its hardware, as galleries name it"""
    confinement: Annotated[BackendConfinement | None, OR_NOT_KNOWN] = None
    """sent at registration; not by LocalAI workers"""


class Heartbeat(Message):
    """A heartbeat. It uses NATS, the link that carries commands, so that a dead link cannot look healthy."""

    node_id: Identifier
    boot_id: Identifier = ""
    seq: Decision = 0
    """increases within one boot: a replayed heartbeat is ignored"""
    at: Moment = None
    """the node's clock; increases over boots, so that a heartbeat of an old boot cannot be replayed"""
    open_ops: OpIds = Field(default_factory=list)
    resources: Resources = Field(default_factory=Resources)
    trust_version: Decision = 0
    """version of the trust list that the node has pinned; 0: not reported"""
    number: Decision = 0
    """of this report about replicas; increases over boots too"""
    replicas: ReplicaReports = None
    """every replica on the node; None: this agent does not report them"""

    @field_validator("resources", mode="before")
    @classmethod
    def _unreadable_is_not_known(cls, value: object) -> object:
        return value if isinstance(value, dict | Resources) else {}

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


class StopWhy(WireEnum):
    """Why the control plane stops a node; a LocalAI worker ignores the reason and leaves."""

    ASKED = auto()
    REMOVED = auto()
    """an admin removed the node: the agent must not return on its own"""
    CREDENTIAL_RESET = auto()
    """the name was released for another machine: the agent must not return on its own"""
    IDENTITY_IN_USE = auto()
    """another process runs as this node: retry later"""
    NOT_KNOWN = auto()
    """the control plane does not know this node (an older registry was restored): register again"""
    UNKNOWN = auto()


class StopOrder(Message):
    """`nodes.<id>.stop`; an empty or `null` message is a plain order to leave."""

    why: StopWhy = StopWhy.ASKED
    boot_id: str = ""
    """stops only the process of this boot; empty: all"""


class BootQuestion(Message):
    """`nodes.<id>.boot`: asks whether the process of this boot is connected; only that process replies."""

    boot_id: str


class BootReply(Message):
    boot_id: str
