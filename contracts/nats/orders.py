"""Signed orders, and the keys that nodes trust. A signature covers the original bytes, so these messages are parsed
only after verification. Times are milliseconds since 1970."""

from typing import Self

from pydantic import Field

from nodesmith.contracts.nats.loads import LoadOrder
from nodesmith.contracts.nats.messages import Command, UpgradePolicy
from nodesmith.contracts.nats.readings import OpId
from nodesmith.contracts.nats.wire import DOCUMENTED, Message, Signed
from nodesmith.domain.kinds import Kind, lock_name


class Order(Message):
    """A change that the API admitted for a node. It contains everything that affects the disk, and is signed."""

    node: str
    op_id: OpId
    kind: Kind = Kind.UNKNOWN
    family: str
    backend: str = ""
    uri: str = ""
    mirrors: list[str] = Field(default_factory=list)
    sha256: str = ""
    size: int = 0
    version: str = ""
    name: str = ""
    alias: str = ""
    model_id: str = ""
    replica_index: int = 0
    """which process of the backend is started; with `model_id`, the replica that is loaded or unloaded"""
    load: LoadOrder | None = None
    """for a load: files, arguments and environment"""
    force: bool = False
    start: bool = False
    policy: UpgradePolicy = UpgradePolicy.RESTART
    if_current: str = ""
    """expected digest from the inventory; the node refuses the order if the disk has another one"""
    by: str = ""
    batch: str = ""
    gallery: str = ""
    """where the artifact was found: a retry is verified by the policy of this gallery"""
    iat: int
    """when it was issued: newer than every earlier order for this node with the same lock"""
    exp: int

    @property
    def lock(self) -> str:
        """What the order has to itself on the node: a backend, or one replica of a model."""
        return lock_name(self.kind, self.family, self.model_id, self.replica_index)

    def command(self, decision: int) -> Command:
        """Return the command that carries out this order."""
        outside = {"node", "if_current", "by", "batch", "gallery", "exp"}
        return Command(**self.model_dump(exclude=outside), decision=decision)


class SignedCommand(Message):
    """`backend.install`, `.upgrade` and `.delete` for our own agents."""

    order: Signed
    decision: int = 0
    """not signed: increases with each decision to try the same order again"""


class Request(Message):
    """A stop, unload or delete. It is not an operation: it is valid for a minute, and only once."""

    node: str
    action: str
    """the action in the subject"""
    question: str
    """the message, as JSON"""
    nonce: str
    iat: int = 0
    exp: int


class OrderKey(Message):
    """A key that signs orders. Nodes reject its signatures after `until`."""

    kid: str
    key: str
    until: int


class TrustList(Message):
    """The keys that nodes trust. A node pins the newest list that it verified, and accepts only higher versions."""

    version: int
    at: int
    """when it was signed"""
    root: str
    """signs the next list"""
    keys: list[OrderKey]


class SignedTrustList(Message):
    """A trust list, signed by the root of the previous version, and by its own root if that differs."""

    model_config = DOCUMENTED

    payload: str
    """the list, as JSON"""
    signature: str
    """by the root key of the previous version"""
    own: str = ""
    """by its own root key, if that differs"""


class TrustChain(Message):
    """Every trust list since the first: a node that was away verifies its way to the newest."""

    model_config = DOCUMENTED

    lists: list[SignedTrustList]
    """the oldest first"""

    @property
    def newest(self) -> SignedTrustList:
        return self.lists[-1]

    def followed_by(self, newer: SignedTrustList) -> Self:
        return self.model_copy(update={"lists": [*self.lists, newer]})
