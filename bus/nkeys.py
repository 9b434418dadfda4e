"""Nkeys: Ed25519 keys in the text form of NATS (base32, a prefix for the role, CRC-16 at the end)."""

import base64
import binascii
import enum
import functools
from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_SEED = 18 << 3
_CHECKSUM_BYTES = 2
_KEY_BYTES = 32
_KEYS_KEPT = 20_000


class Role(enum.IntEnum):
    """The owner of a key; the value is the first byte of the public form and so determines its first letter."""

    OPERATOR = 14 << 3
    ACCOUNT = 0
    USER = 20 << 3


class BadKey(ValueError):
    """The text is not the public key of a user."""


class BadSeed(ValueError):
    """The text is not the seed of an nkey."""


@dataclass(frozen=True)
class KeyPair:
    """A private key with its role. `repr` shows no secret."""

    role: Role
    _private: Ed25519PrivateKey

    @classmethod
    def create(cls, role: Role) -> Self:
        return cls(role, Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: str) -> Self:
        raw = _decode(seed.strip(), 2 + _KEY_BYTES)
        role = (raw[0] & 0x07) << 5 | raw[1] >> 3
        if raw[0] & 0xF8 != _SEED or role not in set(Role):
            raise BadSeed("This is not a seed of an operator, an account or a user.")
        return cls(Role(role), Ed25519PrivateKey.from_private_bytes(raw[2:]))

    @property
    def public(self) -> str:
        return _encode(bytes([self.role]) + self._private.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        prefix = bytes([_SEED | self.role >> 5, (self.role & 0x1F) << 3])
        return _encode(prefix + self._private.private_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)


def verifies(public: str, signature: bytes, data: bytes) -> bool:
    """Whether the holder of that key signed these bytes."""
    try:
        user_key(public).verify(signature, data)
    except (BadKey, InvalidSignature):
        return False
    return True


@functools.lru_cache(_KEYS_KEPT)
def user_key(public: str) -> Ed25519PublicKey:
    """Parse the public key of a user; raise `BadKey` for anything else."""
    try:
        raw = _decode(public, 1 + _KEY_BYTES)
    except BadSeed as error:
        raise BadKey("This is not a public key of a NATS user.") from error
    if raw[0] != Role.USER:
        raise BadKey("This is the key of an operator or an account, not of a user.")
    return Ed25519PublicKey.from_public_bytes(raw[1:])


def _encode(raw: bytes) -> str:
    checksum = binascii.crc_hqx(raw, 0).to_bytes(_CHECKSUM_BYTES, "little")
    return base64.b32encode(raw + checksum).decode().rstrip("=")


def _decode(text: str, length: int) -> bytes:
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError) as error:
        raise BadSeed("A seed is base32 text.") from error
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if len(body) != length or binascii.crc_hqx(body, 0).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
        raise BadSeed("The seed is damaged: its length or checksum is wrong.")
    return body
