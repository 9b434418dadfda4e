"""NATS messages. Protocol 1 is LocalAI's, field for field; protocol 2 adds fields that a LocalAI worker ignores."""

from datetime import datetime
from enum import auto
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from contracts.readings import (
    LONGEST_IDENTIFIER,
    ByteCount,
    Bytes,
    Caption,
    Decision,
    Elapsed,
    Eta,
    Identifier,
    OpId,
    OpIds,
    Percentage,
    Rate,
    RetryAfter,
    Sentence,
    Word,
)
from domain.operation import Kind, Phase, Reason
from domain.wire import WireEnum


class Message(BaseModel):
    """What goes over the bus: unknown fields are ignored, so either side may be newer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        """Leave out what is not set: LocalAI's workers read absent and empty alike."""
        return self.model_dump_json(exclude_none=True, exclude_defaults=True).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raise `ValueError` on anything that is not this message."""
        return cls.model_validate_json(payload)


class Installed(Message):
    """One backend as it lies on a node's disk; the entries of `backend.list`."""

    name: str = ""
    is_system: bool = False
    is_meta: bool = False
    installed_at: datetime | None = None
    gallery_url: str = ""
    version: str = ""
    uri: str = ""
    digest: str = ""
    # protocol 2
    family: str = ""
    previous_version: str = ""
    previous_digest: str = ""


class BackendList(Message):
    """Reply to `backend.list`. LocalAI sends null for an empty list."""

    backends: list[Installed] = Field(default_factory=list)
    error: Sentence = ""

    @field_validator("backends", mode="before")
    @classmethod
    def _null_is_empty(cls, value: object) -> object:
        return value or []

    @field_validator("backends")
    @classmethod
    def _names_can_be_keys(cls, backends: list[Installed]) -> list[Installed]:
        if any(len(name) > LONGEST_IDENTIFIER for each in backends for name in (each.name, each.family)):
            raise ValueError(f"the name of a backend has more than {LONGEST_IDENTIFIER} characters")
        return backends


class UpgradePolicy(WireEnum):
    """What becomes of a running backend when its version is replaced."""

    RESTART = auto()
    """stop what runs, swap, start the same set again"""
    OVERLAP = auto()
    """the new one is ready before the old one stops"""
    UNKNOWN = auto()


class Command(Message):
    """`backend.install`, `.upgrade` and `.delete`: do this to a backend. `kind` tells protocol 2 what is meant."""

    backend: str = ""
    model_id: str = ""
    backend_galleries: str = ""
    uri: str = ""
    name: str = ""
    alias: str = ""
    replica_index: int = 0
    force: bool = False
    op_id: str = ""
    # protocol 2
    kind: Kind = Kind.UNKNOWN
    family: str = ""
    decision: int = 0
    version: str = ""
    sha256: str = ""
    size: int = 0
    mirrors: list[str] = Field(default_factory=list)
    """where else the same artifact is, in the order in which they are asked"""
    start: bool = False
    """start the backend afterwards; an install starts nothing unless asked"""
    policy: UpgradePolicy = UpgradePolicy.RESTART


class Answer(WireEnum):
    """What a protocol-2 node says to a command, within 5 s."""

    ACCEPTED = auto()
    """new work, begun"""
    ATTACHED = auto()
    """that work is going on already; its outcome will be published"""
    ENDED = auto()
    """that work is over; `outcome` repeats how"""
    BUSY = auto()
    """another operation holds this backend: `busy_op_id`"""
    REFUSED = auto()
    """never: cancelled before, or not understood; `reason` and `error` say why"""
    UNKNOWN = auto()


class Result(WireEnum):
    SUCCEEDED = auto()
    FAILED = auto()
    CANCELLED = auto()
    INTERRUPTED = auto()
    """the agent died in the middle and resumes nothing by itself: send again"""
    UNKNOWN = auto()


class Outcome(Message):
    """How an operation ended on its node; published on `...<op>.outcome` and kept in the node's journal."""

    op_id: OpId
    node_id: Identifier = ""
    backend: str = ""
    family: str = ""
    decision: Decision = 0
    result: Result = Result.UNKNOWN
    reason: Reason | None = None
    error: Sentence = ""
    retry_after_s: RetryAfter = None
    """set when the source asked for it (429, 503)"""
    changed: bool = False
    """false: what was asked for was there already"""
    before: Installed | None = None
    after: Installed | None = None
    bytes_fetched: ByteCount = 0
    bytes_reused: ByteCount = 0
    """taken from a partial download instead of the source"""
    addresses: dict[str, str] = Field(default_factory=dict)
    """what was started: process key -> host:port"""
    stopped_process_keys: list[str] = Field(default_factory=list)


class CommandReply(Message):
    """Reply to a command. Protocol 1 fills the first three and sends it at the end; protocol 2 answers at once."""

    success: bool = False
    address: str = ""
    error: Sentence = ""
    stopped_process_keys: list[str] = Field(default_factory=list)
    reports_stopped_processes: bool = False
    # protocol 2
    op_id: str = ""
    answer: Answer = Answer.UNKNOWN
    busy_op_id: str = ""
    reason: Reason | None = None
    outcome: Outcome | None = None


class Progress(Message):
    """A gauge: safe to lose, never used for a decision. `current` and `total` are LocalAI's human sizes."""

    op_id: OpId
    node_id: Identifier = ""
    backend: Caption = ""
    file_name: Caption = ""
    current: Caption = ""
    total: Caption = ""
    percentage: Percentage = 0.0
    phase: Phase = Phase.UNKNOWN
    # protocol 2
    family: Caption = ""
    decision: Decision = 0
    seq: Decision = 0
    """rises within one decision: readers drop what is not newer"""
    bytes_done: ByteCount = 0
    bytes_total: ByteCount = 0
    rate: Rate = 0.0
    """bytes a second, over the last few seconds"""
    eta_s: Eta = None

    def encode(self) -> bytes:
        """`percentage` is always there: LocalAI's readers rely on it."""
        return self.model_dump_json(exclude_none=True).encode()


class OpQuestion(Message):
    """`backend.op`: what do you know of this operation?"""

    op_id: str


class OpStanding(WireEnum):
    RUNNING = auto()
    ENDED = auto()
    INTERRUPTED = auto()
    UNKNOWN = auto()
    """never heard of it: send the command again"""


class OpReply(Message):
    op_id: OpId
    standing: OpStanding = OpStanding.UNKNOWN
    decision: Decision = 0
    progress: Progress | None = None
    outcome: Outcome | None = None


class CancelMode(WireEnum):
    DISCARD = auto()
    """throw partial downloads away"""
    KEEP = auto()
    """keep them for the next operation"""
    UNKNOWN = auto()


class CancelCommand(Message):
    """`backend.cancel`: stop this operation and never touch the node for it again."""

    op_id: str
    family: str = ""
    mode: CancelMode = CancelMode.DISCARD


class CancelAnswer(WireEnum):
    STOPPED = auto()
    """the tombstone is on disk and nothing runs: this operation never changes the node again"""
    TOO_LATE = auto()
    """it ended before the cancel came; `outcome` says how"""
    UNKNOWN = auto()


class CancelReply(Message):
    op_id: OpId
    answer: CancelAnswer = CancelAnswer.UNKNOWN
    stopped_after_s: Elapsed = 0.0
    """from the arrival of the cancel to the last byte written"""
    bytes_done: ByteCount = 0
    outcome: Outcome | None = None
    error: Sentence = ""


class LogsQuestion(Message):
    """`backend.logs`: what a backend has written. Without `cursor` the tail; with it what came since, waited for."""

    backend: str = ""
    """a process key, or a backend's name; empty lists the keys"""
    cursor: int | None = None
    lines: int = 200
    wait_s: float = 0.0
    """follow: answer as soon as there is more, at the latest after so long"""


class LogsReply(Message):
    keys: list[str] = Field(default_factory=list)
    """the processes whose logs are here"""
    key: str = ""
    lines: list[str] = Field(default_factory=list)
    cursor: int = 0
    """ask again from here"""
    error: str = ""


class RunningModel(Message):
    model_id: str
    replica_index: int = 0
    address: str = ""
    """as this node sees it: 127.0.0.1:<port>"""
    # protocol 2
    backend: str = ""
    version: str = ""


class RunningModels(Message):
    """Reply to `models.running`; processes that are being stopped are left out."""

    models: list[RunningModel] = Field(default_factory=list)
    error: str = ""

    def encode(self) -> bytes:
        """LocalAI's readers expect the list and each index, empty or not."""
        return self.model_dump_json(exclude_none=True).encode()


class ModelQuestion(Message):
    """`model.unload`, `model.stop` and `model.delete`."""

    model_name: str = ""
    address: str = ""
    process_key: str = ""
    expected_address: str = ""
    force: bool = False


class ModelReply(Message):
    """Reply to `model.unload` and `model.delete`."""

    success: bool = False
    error: str = ""


class ModelStopped(Message):
    """Reply to `model.stop`, given once the process has ended. Nothing there is `terminated`, not `matched`."""

    matched: bool = False
    freed: bool = False
    terminated: bool = False
    process_key: str = ""
    address: str = ""
    error: str = ""


class Resources(Message):
    """What a node has; 0 = none, None = not known. Field names are LocalAI's."""

    total_vram: Bytes = None
    available_vram: Bytes = None
    total_ram: Bytes = None
    available_ram: Bytes = None
    total_disk: Bytes = None
    available_disk: Bytes = None
    gpu_vendor: Word = None
    gpu_compute_capability: Word = None
    capability: Word = None


class Heartbeat(Message):
    """Over NATS, the link that carries commands: a dead link cannot look healthy."""

    node_id: Identifier
    boot_id: Identifier = ""
    seq: Decision = 0
    open_ops: OpIds = Field(default_factory=list)
    resources: Resources = Field(default_factory=Resources)

    @field_validator("resources", mode="before")
    @classmethod
    def _unreadable_is_not_known(cls, value: object) -> object:
        return value if isinstance(value, dict | Resources) else {}

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


class StopWhy(WireEnum):
    """Why the control plane tells a node to stop; a LocalAI worker reads no reason and leaves."""

    ASKED = auto()
    REMOVED = auto()
    """an admin removed the node: do not come back by yourself"""
    CREDENTIAL_RESET = auto()
    """the name was given free for another machine: do not come back by yourself"""
    IDENTITY_IN_USE = auto()
    """another process is this node already: ask again later"""
    NOT_KNOWN = auto()
    """nobody here knows this node (an older registry was restored): register again"""
    UNKNOWN = auto()


class StopBackend(Message):
    """`backend.stop`: a backend, a model, or one `model#replica`; empty: everything."""

    backend: str = ""
    force: bool = False


class StopOrder(Message):
    """`nodes.<id>.stop`; nothing, or `null`, is a plain order to leave."""

    why: StopWhy = StopWhy.ASKED
    boot_id: str = ""
    """only the process of this boot is meant; empty: all"""


class BootQuestion(Message):
    """`nodes.<id>.boot`: is the process of this boot there? Only that one answers."""

    boot_id: str


class BootReply(Message):
    boot_id: str
