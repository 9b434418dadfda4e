"""Signs and verifies with Ed25519; no message can select another algorithm.

A signature covers purpose, key id, length and payload, so it is invalid for any other purpose.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass, field
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from nodesmith.contracts.nats.wire import Signed

ORDER = "nodesmith-order-v1"
REQUEST = "nodesmith-request-v1"
TRUST = "nodesmith-trust-v1"
_KID_CHARACTERS = 16


class BadSignature(Exception):
    """The signature does not match key, purpose and payload."""


@dataclass(frozen=True)
class SigningKey:
    """A private key. `repr` shows no secret."""

    _private: Ed25519PrivateKey = field(repr=False)
    public: str
    kid: str

    @classmethod
    def create(cls) -> Self:
        return cls._of(Ed25519PrivateKey.generate())

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls._of(Ed25519PrivateKey.from_private_bytes(_decoded(text.strip())))

    @classmethod
    def _of(cls, private: Ed25519PrivateKey) -> Self:
        public = _encoded(private.public_key().public_bytes_raw())
        return cls(private, public, kid_of(public))

    @property
    def text(self) -> str:
        """The secret as stored in a file."""
        return _encoded(self._private.private_bytes_raw())

    def sign(self, purpose: str, payload: str) -> str:
        return _encoded(self._private.sign(_covered(purpose, self.kid, payload)))

    def seal(self, purpose: str, payload: str) -> Signed:
        return Signed(kid=self.kid, payload=payload, signature=self.sign(purpose, payload))


@dataclass(frozen=True)
class VerifyKey:
    """A public key."""

    _public: Ed25519PublicKey
    kid: str

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(Ed25519PublicKey.from_public_bytes(_decoded(text)), kid_of(text))

    def verify(self, purpose: str, payload: str, signature: str) -> None:
        """Raise `BadSignature` unless this key signed exactly this payload for this purpose."""
        try:
            self._public.verify(_decoded(signature), _covered(purpose, self.kid, payload))
        except (InvalidSignature, ValueError) as error:
            raise BadSignature("The signature does not match.") from error


def fingerprint(public: str) -> str:
    """Return the SHA-256 of a public key, as used in invites."""
    return hashlib.sha256(_decoded(public)).hexdigest()


def kid_of(public: str) -> str:
    return fingerprint(public)[:_KID_CHARACTERS]


def _covered(purpose: str, kid: str, payload: str) -> bytes:
    content = payload.encode()
    return f"{purpose}|{kid}|{len(content)}|".encode() + content


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    """Decode; raise `ValueError` for anything that `_encoded` does not produce."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("This is not base64 text.") from error
    if _encoded(raw) != text:
        raise ValueError("This is not canonical base64 text.")
    return raw
