"""Verifies cosign's key-based signatures offline: simple signing, and sigstore bundles.

Certificates and the transparency log are ignored: the gallery trusts keys.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodesmith.gallery.artifact_keys import PublicKey

SIGNATURE = "dev.cosignproject.cosign/signature"
"""the layer annotation with the signature over the layer's content"""
BUNDLE = "application/vnd.dev.sigstore.bundle"
"""prefix of the media type of every bundle version"""
_SIMPLE_SIGNING = "cosign container image signature"
_IN_TOTO = "application/vnd.in-toto+json"
_SIGNED = "https://sigstore.dev/cosign/sign/v1"
"""the only statement type that counts as a signature: an SBOM or a scan by the same key does not"""


def simple_signers(payload: bytes, signature: str, digest: str, keys: Iterable[PublicKey]) -> set[str]:
    """Return the ids of the keys that signed this payload, if it is for the image with that digest (`sha256:...`)."""
    critical = _object(_json(payload).get("critical"))
    image = _object(critical.get("image"))
    if critical.get("type") != _SIMPLE_SIGNING or image.get("docker-manifest-digest") != digest:
        return set()
    return {key.id for key in _cosign_keys(keys) if key.verifies(_decoded(signature), payload)}


def bundle_signers(bundle: bytes, sha256: str, keys: Sequence[PublicKey]) -> set[str]:
    """Return the ids of the keys whose signature over that digest is in a sigstore bundle."""
    read = _json(bundle)
    if not str(read.get("mediaType", "")).startswith(BUNDLE):
        return set()
    if envelope := _object(read.get("dsseEnvelope")):
        return _envelope_signers(envelope, sha256, keys)
    signature = _decoded(_object(read.get("messageSignature")).get("signature"))
    return {key.id for key in _cosign_keys(keys) if key.verifies_sha256(signature, sha256)}


def _envelope_signers(envelope: Mapping[str, Any], sha256: str, keys: Sequence[PublicKey]) -> set[str]:
    payload, kind = _decoded(envelope.get("payload")), envelope.get("payloadType")
    if kind != _IN_TOTO or not _is_about(_json(payload), sha256):
        return set()
    message = encoded_for_signing(kind, payload)
    signatures = [_decoded(_object(each).get("sig")) for each in _list(envelope.get("signatures"))]
    return {key.id for key in _cosign_keys(keys) for signature in signatures if key.verifies(signature, message)}


def _cosign_keys(keys: Iterable[PublicKey]) -> list[PublicKey]:
    return [key for key in keys if not key.is_minisign]


def _is_about(statement: Mapping[str, Any], sha256: str) -> bool:
    digests = [_object(_object(subject).get("digest")).get("sha256") for subject in _list(statement.get("subject"))]
    return statement.get("predicateType") == _SIGNED and digests == [sha256]


def encoded_for_signing(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: the bytes that an envelope's signatures cover."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def _json(content: bytes) -> dict[str, Any]:
    try:
        return _object(json.loads(content))
    except (ValueError, RecursionError):
        return {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value[:16] if isinstance(value, list) else []


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""
