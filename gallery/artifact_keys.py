"""Public keys that a gallery trusts: minisign keys, and PEM keys as cosign writes them."""

import base64
import binascii
import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

MINISIGN = b"Ed"
"""how the bytes of a minisign key begin"""
_MINISIGN_LENGTH = 42
_COMMENT = "untrusted comment:"


class BadKey(ValueError):
    """This is no public key that can be used."""


@dataclass(frozen=True)
class PublicKey:
    """One key; `id` is what people compare: minisign's own key id, or the begin of the sha256 of the key."""

    id: str
    key: Ed25519PublicKey | ec.EllipticCurvePublicKey
    is_minisign: bool = False
    """a key verifies the signatures of its own tool only: the messages of two tools may look alike"""

    @property
    def content(self) -> bytes:
        """What makes it this key: a minisign key id is a number that its maker chose."""
        return self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def verifies(self, signature: bytes, message: bytes) -> bool:
        try:
            if isinstance(self.key, Ed25519PublicKey):
                self.key.verify(signature, message)
            else:
                self.key.verify(signature, message, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True

    def verifies_sha256(self, signature: bytes, sha256: str) -> bool:
        """A signature over content of which only the digest is here; Ed25519 needs the content itself."""
        if isinstance(self.key, Ed25519PublicKey):
            return False
        try:
            self.key.verify(signature, bytes.fromhex(sha256), ec.ECDSA(Prehashed(SHA256())))
        except InvalidSignature:
            return False
        return True

    def raw(self) -> bytes:
        """The 32 bytes of an Ed25519 key."""
        if not isinstance(self.key, Ed25519PublicKey):
            raise BadKey("An index is signed with Ed25519 keys; make one with `nodesmith galleries keygen`.")
        return self.key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def read_key(text: str) -> PublicKey:
    """Read the content of `minisign.pub`, its second line alone, or `cosign.pub`."""
    return _pem(text) if "-----BEGIN" in text else _minisign(text)


def minisign_id(number: bytes) -> str:
    """As minisign prints it."""
    return number[::-1].hex().upper()


def _minisign(text: str) -> PublicKey:
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith(_COMMENT)]
    try:
        raw = base64.b64decode(lines[0].strip(), validate=True) if len(lines) == 1 else b""
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _MINISIGN_LENGTH or not raw.startswith(MINISIGN):
        raise BadKey("It is neither a minisign public key nor a public key in PEM.")
    return PublicKey(minisign_id(raw[2:10]), Ed25519PublicKey.from_public_bytes(raw[10:]), is_minisign=True)


def _pem(text: str) -> PublicKey:
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise BadKey("It is no public key in PEM.") from None
    is_p256 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    if not isinstance(key, Ed25519PublicKey) and not is_p256:
        raise BadKey("Only Ed25519 and ECDSA P-256 keys are supported.")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert isinstance(key, Ed25519PublicKey | ec.EllipticCurvePublicKey)  # noqa: S101 - for the type checker
    return PublicKey(hashlib.sha256(der).hexdigest()[:16].upper(), key)
