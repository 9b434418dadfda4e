"""minisign's files: key pairs and signatures of plain files, compatible with the minisign tool.

A signature covers the file or its BLAKE2b digest, so its verification needs the file. The trusted comment has its own
signature: a comment `sha256:...` proves, without the file, which digest the key's holder meant.
"""

import base64
import binascii
import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from nodesmith.gallery.artifact_keys import MINISIGN, BadKey, PublicKey, minisign_id

LARGEST = 64 * 1024
_MOST = 16
_LEGACY, _PREHASHED = b"Ed", b"ED"
_CHECKSUM, _NO_KDF = b"B2", b"\0\0"
_UNTRUSTED, _TRUSTED = "untrusted comment: ", "trusted comment: "
_STATED = re.compile(r"(?:^|\s)sha256:([0-9a-f]{64})(?:\s|$)")
_SIGNATURE_LENGTH, _SECRET_LENGTH, _PARTS = 74, 158, 4


class BadSignature(ValueError):
    """The text is not a minisign signature."""


@dataclass(frozen=True)
class Signature:
    """One parsed signature, not verified yet."""

    key_id: str
    is_prehashed: bool
    signature: bytes
    comment: str
    """the trusted comment; valid only after `states` or `covers`"""
    over_comment: bytes

    def states(self, key: PublicKey) -> str:
        """Return the sha256 that this key's holder stated in the trusted comment; empty if the key did not sign one."""
        stated = _STATED.search(self.comment)
        return stated[1] if stated and self._is_comment_of(key) else ""

    def covers(self, path: Path, key: PublicKey) -> bool:
        """Return whether this key signed the file and the trusted comment."""
        return key.verifies(self.signature, self._message(path)) and self._is_comment_of(key)

    def _is_comment_of(self, key: PublicKey) -> bool:
        if not key.is_minisign or key.id != self.key_id:
            return False
        return key.verifies(self.over_comment, self.signature + self.comment.encode())

    def _message(self, path: Path) -> bytes:
        if not self.is_prehashed:
            return path.read_bytes()
        with path.open("rb") as file:
            return hashlib.file_digest(file, hashlib.blake2b).digest()


def read_signatures(text: str) -> list[Signature]:
    """Parse a `.minisig`, which may contain several signatures."""
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line]
    if len(text) > LARGEST or not lines or len(lines) % _PARTS or len(lines) > _PARTS * _MOST:
        raise BadSignature("It is not a minisign signature.")
    return [_signature(lines[start : start + _PARTS]) for start in range(0, len(lines), _PARTS)]


def _signature(lines: Sequence[str]) -> Signature:
    untrusted, signature, trusted, over_comment = lines
    raw, whole = _decoded(signature), _decoded(over_comment)
    is_sound = untrusted.startswith(_UNTRUSTED) and trusted.startswith(_TRUSTED)
    if not is_sound or len(raw) != _SIGNATURE_LENGTH or raw[:2] not in (_LEGACY, _PREHASHED):
        raise BadSignature("It is not a minisign signature.")
    return Signature(minisign_id(raw[2:10]), raw[:2] == _PREHASHED, raw[10:], trusted.removeprefix(_TRUSTED), whole)


@dataclass(frozen=True)
class SecretKey:
    """A signing key; `number` is minisign's key id."""

    number: bytes
    key: Ed25519PrivateKey

    @classmethod
    def make(cls) -> "SecretKey":
        return cls(os.urandom(8), Ed25519PrivateKey.generate())

    @property
    def id(self) -> str:
        return minisign_id(self.number)

    def public(self) -> PublicKey:
        return PublicKey(self.id, self.key.public_key(), is_minisign=True)

    def public_text(self) -> str:
        raw = MINISIGN + self.number + _public(self.key)
        return f"{_UNTRUSTED}minisign public key {self.id}\n{_encoded(raw)}\n"

    def secret_text(self) -> str:
        """Not encrypted, as written by `minisign -G -W`: the file's mode protects it."""
        seed = self.key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        pair = seed + _public(self.key)
        raw = MINISIGN + _NO_KDF + _CHECKSUM + bytes(48) + self.number + pair + bytes(32)
        return f"{_UNTRUSTED}minisign secret key {self.id}\n{_encoded(raw)}\n"

    def sign(self, path: Path, *, sha256: str) -> str:
        """Return the text of a `.minisig` for the file; its trusted comment states the sha256."""
        with path.open("rb") as file:
            signature = self.key.sign(hashlib.file_digest(file, hashlib.blake2b).digest())
        comment = f"timestamp:{int(time.time())}\tfile:{path.name}\tsha256:{sha256}\thashed"
        over_comment = self.key.sign(signature + comment.encode())
        first = _encoded(_PREHASHED + self.number + signature)
        return f"{_UNTRUSTED}signature of {self.id}\n{first}\n{_TRUSTED}{comment}\n{_encoded(over_comment)}\n"


def read_secret(text: str) -> SecretKey:
    """Read a secret key without a password."""
    lines = [line for line in text.split("\n") if line]
    raw = _decoded(lines[-1]) if lines else b""
    if len(raw) != _SECRET_LENGTH or raw[:2] != MINISIGN:
        raise BadKey("It is not a minisign secret key; make one with `nodesmith galleries keygen`.")
    if raw[2:4] != _NO_KDF:
        raise BadKey("The secret key is encrypted; use one that `minisign -G -W` or `nodesmith galleries keygen` made.")
    number, pair = raw[54:62], raw[62:126]
    key = Ed25519PrivateKey.from_private_bytes(pair[:32])
    if _public(key) != pair[32:]:
        raise BadKey("The secret key is damaged.")
    return SecretKey(number, key)


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _decoded(line: str) -> bytes:
    try:
        return base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        return b""
