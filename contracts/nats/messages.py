"""NATS messages. Protocol 1 is LocalAI's, field for field; protocol 2 adds fields that a LocalAI worker ignores."""

import json
from datetime import datetime
from enum import auto
from typing import Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from nodesmith.contracts.http.shared import Address
from nodesmith.contracts.nats.loads import LoadOrder
from nodesmith.contracts.nats.readings import (
    LONGEST_IDENTIFIER,
    ByteCount,
    Caption,
    Decision,
    Elapsed,
    Eta,
    Identifier,
    OpId,
    Percentage,
    Rate,
    RetryAfter,
    Sentence,
)
from nodesmith.contracts.nats.wire import DOCUMENTED, Message, Signed
from nodesmith.domain.kinds import Kind, lock_name
from nodesmith.domain.operation import Phase, Reason
from nodesmith.domain.wire_enum import WireEnum


class Installed(Message):
    """One backend on a node's disk; an entry of `backend.list`."""

    model_config = DOCUMENTED

    name: str = ""
    """name of the backend"""
    is_system: bool = False
    """it came with the node, and is not removed"""
    is_meta: bool = False
    """it names another backend"""
    installed_at: datetime | None = None
    """when it was installed"""
    gallery_url: Address = ""
    """address of the gallery it came from"""
    version: str = ""
    """its version"""
    uri: Address = ""
    """where it came from"""
    digest: str = ""
    """digest of what was installed"""
    # protocol 2
    family: str = ""
    """the name under which it is locked and stored on a node"""
    previous_version: str = ""
    """the version that a rollback returns to; empty: none"""
    previous_digest: str = ""
    """digest of that version"""


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
    """How a running backend is replaced by another version."""

    RESTART = auto()
    """stop the running processes, swap, start the same processes again"""
    OVERLAP = auto()
    """start the new version before the old one stops"""
    UNKNOWN = auto()


class Command(Message):
    """`backend.install`, `.upgrade` and `.delete`. `kind` says for protocol 2 what to do."""

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
    """other places of the same artifact, in the order in which they are tried"""
    start: bool = False
    """start the backend afterwards; by default an install starts nothing"""
    policy: UpgradePolicy = UpgradePolicy.RESTART
    iat: int = 0
    """when the order was issued"""
    load: LoadOrder | None = None
    """for a load: what to load; `model_id` and `replica_index` name the replica"""
    signed: Signed | None = None
    """for a stop: our own agents read only this"""

    @property
    def lock(self) -> str:
        """What the command has to itself on the node."""
        return lock_name(self.kind, self.family, self.model_id, self.replica_index)


class Answer(WireEnum):
    """A protocol-2 node's reply to a command, within 5 s."""

    ACCEPTED = auto()
    """the node has begun new work"""
    ATTACHED = auto()
    """this work is running already; its outcome will be published"""
    ENDED = auto()
    """this work has ended; `outcome` repeats the result"""
    BUSY = auto()
    """another operation holds this backend: `busy_op_id`"""
    REFUSED = auto()
    """will never be done: cancelled before, or not understood; `reason` and `error` say why"""
    UNKNOWN = auto()


class Result(WireEnum):
    SUCCEEDED = auto()
    FAILED = auto()
    CANCELLED = auto()
    INTERRUPTED = auto()
    """the agent died during the work and does not resume it: send the command again"""
    UNKNOWN = auto()


class Outcome(Message):
    """The result of an operation on its node; published on `...<op>.outcome` and kept in the node's journal.

    A signed outcome is serialised as its envelope, the node's own bytes, so it can be verified wherever it is stored.
    """

    op_id: OpId
    node_id: Identifier = ""
    backend: str = ""
    family: str = ""
    decision: Decision = 0
    result: Result = Result.UNKNOWN
    reason: Reason | None = None
    error: Sentence = ""
    retry_after_s: RetryAfter = None
    """set if the source requested it (429, 503)"""
    changed: bool = False
    """false: the requested state was present already"""
    before: Installed | None = None
    after: Installed | None = None
    bytes_fetched: ByteCount = 0
    bytes_reused: ByteCount = 0
    """reused from a partial download"""
    addresses: dict[str, str] = Field(default_factory=dict)
    """started processes: process key -> host:port"""
    stopped_process_keys: list[str] = Field(default_factory=list)
    report: Decision = 0
    """number of the node's last report before this end: every later one names the replicas that it left running"""
    signed: str = Field(default="", exclude=True)
    """the envelope of the outcome: `<public key>.<signature>.<json>`"""

    @model_validator(mode="before")
    @classmethod
    def _read_envelope(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        payload = json.loads(value.split(".", 2)[-1])
        if not isinstance(payload, dict):
            raise ValueError("an outcome must be a JSON object")  # noqa: TRY004 - pydantic reads this one
        return {**payload, "signed": value}

    @model_serializer(mode="wrap", when_used="json")
    def _write_envelope(self, write: SerializerFunctionWrapHandler) -> Any:
        return self.signed or write(self)


class CommandReply(Message):
    """Reply to a command. Protocol 1 fills the first three and replies at the end; protocol 2 replies at once."""

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
    """A gauge: safe to lose, never used for a decision. `current` and `total` are LocalAI's human-readable sizes."""

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
    """increases within one decision: readers drop older values"""
    bytes_done: ByteCount = 0
    bytes_total: ByteCount = 0
    rate: Rate = 0.0
    """bytes per second, over the last few seconds"""
    eta_s: Eta = None

    def encode(self) -> bytes:
        """Always include `percentage`: LocalAI's readers rely on it."""
        return self.model_dump_json(exclude_none=True).encode()


class OpQuestion(Message):
    """`backend.op`: request the status of an operation."""

    op_id: str


class NodeOperationStatus(WireEnum):
    RUNNING = auto()
    ENDED = auto()
    INTERRUPTED = auto()
    UNKNOWN = auto()
    """the node does not know the operation: send the command again"""


class OpReply(Message):
    op_id: OpId
    standing: NodeOperationStatus = NodeOperationStatus.UNKNOWN
    decision: Decision = 0
    progress: Progress | None = None
    outcome: Outcome | None = None


class CancelMode(WireEnum):
    DISCARD = auto()
    """delete partial downloads"""
    KEEP = auto()
    """keep them for the next operation"""
    UNKNOWN = auto()


class CancelCommand(Message):
    """`backend.cancel`: stop this operation, and never change the node for it again."""

    op_id: str
    family: str = ""
    mode: CancelMode = CancelMode.DISCARD


class CancelAnswer(WireEnum):
    STOPPED = auto()
    """the tombstone is on disk and nothing runs: this operation will not change the node again"""
    TOO_LATE = auto()
    """it ended before the cancel arrived; `outcome` has the result"""
    UNKNOWN = auto()


class CancelReply(Message):
    op_id: OpId
    answer: CancelAnswer = CancelAnswer.UNKNOWN
    stopped_after_s: Elapsed = 0.0
    """from the arrival of the cancel to the last byte written"""
    bytes_done: ByteCount = 0
    outcome: Outcome | None = None
    error: Sentence = ""


class StopBackend(Message):
    """`backend.stop`: a backend, a model, or one `model#replica`; empty means all."""

    backend: str = ""
    force: bool = False
    signed: Signed | None = None
    """the same message, signed: our own agents read only this"""
