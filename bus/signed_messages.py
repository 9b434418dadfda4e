"""Signatures of node messages: nodes sign with their own key, the control plane verifies.

An envelope is `<public key>.<signature>.<payload>`. The payload is verified as it was received and parsed afterwards,
so no canonical form is needed. The signed bytes name kind and subject, so no message can replace another.
"""

import base64
import binascii
import enum
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from nodesmith.bus.nkeys import KeyPair, verifies
from nodesmith.contracts.nats.messages import Outcome
from nodesmith.domain.errors import BadSignature, NodesmithError
from nodesmith.domain.node import NatsCredential, NodeKey
from nodesmith.domain.node import Protocol as Wire

log = structlog.stdlib.get_logger(__name__)

KEPT_S = 300.0
"""keys are read again after this time"""
DOUBTED_S = 1.0
"""after a failed verification, a key older than this is read again at once"""


class Signed(enum.StrEnum):
    """The kind of a signed message."""

    HEARTBEAT = "heartbeat"
    """bound to the node"""
    OUTCOME = "outcome"
    """bound to the node; the payload names the operation"""
    REPLY = "reply"
    """bound to its reply subject, which contains the request token, so it answers only that request"""


class NodeKeys(Protocol):
    """Source of the registered node keys; unknown nodes are left out."""

    async def keys_of(self, node_ids: Sequence[str]) -> Mapping[str, NodeKey]: ...


class ReportSigner:
    """Signs a node's messages with the key of its newest credential."""

    def __init__(self, credentials: Callable[[], NatsCredential]) -> None:
        self._credentials = credentials
        self._seed = ""
        self._key: KeyPair | None = None

    def seal(self, what: Signed, about: str, payload: bytes) -> bytes:
        seed = self._credentials().seed
        if self._key is None or self._seed != seed:
            self._seed, self._key = seed, KeyPair.from_seed(seed)
        return seal(self._key, what, about, payload)


class Signatures:
    """Verifies envelopes against the registered key of the node."""

    def __init__(self, keys: NodeKeys, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._known: dict[str, tuple[NodeKey | None, float]] = {}
        self.rejected: Counter[Signed] = Counter()
        """rejected messages per kind, because of a missing or wrong signature"""

    async def load(self, node_ids: Sequence[str]) -> None:
        """Read the keys of these nodes in one query, if they are unknown or older than `KEPT_S`."""
        if missing := [each for each in node_ids if self._age(each) > KEPT_S]:
            await self._read(missing)

    def has_key(self, node_id: str) -> bool:
        """False if the node is not registered or its credential was reset; call `load` first."""
        known = self._known.get(node_id, (None, 0.0))[0]
        return known is not None and (known.protocol is Wire.LOCALAI or bool(known.public))

    async def signs(self, node_id: str) -> bool:
        """False for a LocalAI worker, whose messages are accepted unsigned."""
        await self.load([node_id])
        key = self._known[node_id][0]
        return key is None or key.protocol is not Wire.LOCALAI

    async def verify_outcome(self, node_id: str, op_id: str, outcome: Outcome) -> Outcome:
        """Return the outcome that the node signed, and ignore the unsigned fields."""
        if not await self.signs(node_id):
            return outcome
        payload = await self.open(node_id, Signed.OUTCOME, node_id, outcome.signed.encode())
        try:
            signed = Outcome.decode(payload)
        except ValueError as error:
            raise BadSignature("The node's signed message is not an outcome.", node=node_id, op_id=op_id) from error
        if (signed.node_id, signed.op_id) != (node_id, op_id):
            self.rejected[Signed.OUTCOME] += 1
            raise BadSignature("The outcome belongs to another operation.", node=node_id, op_id=op_id)
        return signed.model_copy(update={"signed": outcome.signed})

    async def open(self, node_id: str, what: Signed, about: str, data: bytes) -> bytes:
        """Return the payload; raise `BadSignature` unless that node signed it. A LocalAI worker signs nothing."""
        await self.load([node_id])
        try:
            return self._open(node_id, what, about, data)
        except BadSignature:
            if self._age(node_id) > DOUBTED_S:  # the node may have registered another key meanwhile
                await self._read([node_id])
        return self._open_or_count(node_id, what, about, data)

    def _open_or_count(self, node_id: str, what: Signed, about: str, data: bytes) -> bytes:
        try:
            return self._open(node_id, what, about, data)
        except BadSignature as error:
            self.rejected[what] += 1
            log.warning("signature.rejected", node_id=node_id, what=what, error=error.message, bytes=len(data))
            raise

    def _open(self, node_id: str, what: Signed, about: str, data: bytes) -> bytes:
        key = self._known[node_id][0]
        if key is None:
            raise BadSignature(f"Node {node_id} is not known.", node=node_id)
        if key.protocol is Wire.LOCALAI:
            return data
        return opened(key.public, what, about, data)

    def _age(self, node_id: str) -> float:
        known = self._known.get(node_id)
        return self._clock() - known[1] if known is not None else float("inf")

    async def _read(self, node_ids: Sequence[str]) -> None:
        """Read keys; during an outage of the store, keep the known ones."""
        now = self._clock()
        try:
            found = await self._keys.keys_of(node_ids)
        except NodesmithError as error:
            if any(each not in self._known for each in node_ids):
                raise
            log.warning("signature.keys_not_read", error=error.message)
            return
        self._known.update({each: (found.get(each), now) for each in node_ids})


def seal(key: KeyPair, what: Signed, about: str, payload: bytes) -> bytes:
    signature = base64.urlsafe_b64encode(key.sign(_signed_bytes(what, about, payload))).rstrip(b"=")
    return b".".join((key.public.encode(), signature, payload))


def opened(public: str, what: Signed, about: str, data: bytes) -> bytes:
    """Return the payload of an envelope; raise `BadSignature` unless this key signed it."""
    parts = data.split(b".", 2)
    if len(parts) != 3:  # noqa: PLR2004 - the parts of an envelope
        raise BadSignature("The message is not signed.")
    signer, signature, payload = parts
    if signer != public.encode():
        raise BadSignature("The message is signed with another key than the one that the node registered.")
    if not verifies(public, _decoded(signature), _signed_bytes(what, about, payload)):
        raise BadSignature("The signature does not match the message.")
    return payload


def unverified(data: bytes) -> bytes:
    """Return the payload of an envelope without verifying it."""
    return data if data.startswith(b"{") else data.split(b".", 2)[-1]


def _decoded(text: bytes) -> bytes:
    """Decode strictly: otherwise other bytes than the node's would pass for its envelope, even unreadable ones."""
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _signed_bytes(what: Signed, about: str, payload: bytes) -> bytes:
    """Return the bytes to sign. The first line cannot be a NATS nonce, so a signed nonce is worthless here."""
    return f"nodesmith-{what}-v1\n{about}\n".encode() + payload
