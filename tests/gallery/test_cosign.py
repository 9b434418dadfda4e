"""cosign signatures; the one in `vectors` was made with OpenSSL."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodesmith.gallery.artifact_keys import BadKey, PublicKey, read_key
from nodesmith.gallery.cosign import bundle_signers, simple_signers

VECTORS = Path(__file__).parent / "vectors"
DIGEST = hashlib.sha256((VECTORS / "artifact.bin").read_bytes()).hexdigest()
SIGN = "https://sigstore.dev/cosign/sign/v1"
IN_TOTO = "application/vnd.in-toto+json"

Private = ec.EllipticCurvePrivateKey | Ed25519PrivateKey


def public_text(key: Private | ec.EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def signed(key: Private, message: bytes) -> str:
    raw = key.sign(message) if isinstance(key, Ed25519PrivateKey) else key.sign(message, ec.ECDSA(SHA256()))
    return base64.b64encode(raw).decode()


def payload(digest: str = DIGEST) -> bytes:
    """As `cosign sign` writes it."""
    image = {"docker-manifest-digest": f"sha256:{digest}"}
    kind = "cosign container image signature"
    return json.dumps({"critical": {"identity": {}, "image": image, "type": kind}, "optional": None}).encode()


def envelope(key: Private, *, digest: str = DIGEST, predicate: str = SIGN) -> bytes:
    """As `cosign sign --new-bundle-format` writes it: the encoding that is signed, written out by hand."""
    subject = [{"name": "", "digest": {"sha256": digest}}]
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": subject, "predicateType": predicate}
    body = json.dumps(statement).encode()
    message = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(body)).encode() + b" " + body
    return bundle(
        dsseEnvelope={
            "payload": base64.b64encode(body).decode(),
            "payloadType": IN_TOTO,
            "signatures": [{"sig": signed(key, message)}],
        }
    )


def bundle(**content: Any) -> bytes:
    kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
    return json.dumps({"mediaType": kind, "verificationMaterial": {"publicKey": {}}, **content}).encode()


@pytest.fixture(params=["ecdsa", "ed25519"])
def private(request: pytest.FixtureRequest) -> Private:
    return ec.generate_private_key(ec.SECP256R1()) if request.param == "ecdsa" else Ed25519PrivateKey.generate()


@pytest.fixture
def key(private: Private) -> PublicKey:
    return read_key(public_text(private))


def test_a_signature_of_openssl_in_a_bundle_is_verified_without_the_file() -> None:
    key = read_key((VECTORS / "openssl.pub").read_text())
    content = bundle(messageSignature={"signature": (VECTORS / "openssl.sig").read_text()})
    assert bundle_signers(content, DIGEST, [key]) == {key.id}
    assert bundle_signers(content, "0" * 64, [key]) == set()


def test_an_image_is_signed_by_its_payload(private: Private, key: PublicKey) -> None:
    signature = signed(private, payload())
    assert simple_signers(payload(), signature, f"sha256:{DIGEST}", [key]) == {key.id}
    assert simple_signers(payload(), signature, f"sha256:{'0' * 64}", [key]) == set()
    assert simple_signers(payload("0" * 64), signature, f"sha256:{'0' * 64}", [key]) == set()
    assert (
        simple_signers(payload(), signature, f"sha256:{DIGEST}", [read_key((VECTORS / "openssl.pub").read_text())])
        == set()
    )


def test_an_image_is_signed_by_a_statement(private: Private, key: PublicKey) -> None:
    assert bundle_signers(envelope(private), DIGEST, [key]) == {key.id}
    assert bundle_signers(envelope(private), "0" * 64, [key]) == set()
    assert bundle_signers(envelope(private, digest="0" * 64), DIGEST, [key]) == set()


def test_an_attestation_by_the_same_key_is_no_signature(private: Private, key: PublicKey) -> None:
    assert bundle_signers(envelope(private, predicate="https://spdx.dev/Document"), DIGEST, [key]) == set()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, bundle(), bundle(dsseEnvelope=[1])])
def test_what_is_no_bundle_has_no_signers(content: bytes, key: PublicKey) -> None:
    assert bundle_signers(content, DIGEST, [key]) == set()
    assert simple_signers(content, "AA==", f"sha256:{DIGEST}", [key]) == set()


def test_other_kinds_of_keys_are_refused() -> None:
    with pytest.raises(BadKey, match="P-256"):
        read_key(public_text(ec.generate_private_key(ec.SECP384R1())))
