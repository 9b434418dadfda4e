"""minisign's files; those in `vectors` were made with minisign 0.11 itself."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodesmith.gallery.artifact_keys import BadKey, PublicKey, read_key
from nodesmith.gallery.cosign import encoded_for_signing, simple_signers
from nodesmith.gallery.minisign import BadSignature, SecretKey, Signature, read_secret, read_signatures

VECTORS = Path(__file__).parent / "vectors"
ARTIFACT = VECTORS / "artifact.bin"
SHA256 = hashlib.sha256(ARTIFACT.read_bytes()).hexdigest()


@pytest.fixture
def key() -> PublicKey:
    return read_key((VECTORS / "minisign.pub").read_text())


def vector(name: str) -> Signature:
    return read_signatures((VECTORS / f"{name}.minisig").read_text())[0]


@pytest.mark.parametrize(
    ("name", "is_prehashed", "stated"), [("stated", True, SHA256), ("legacy", False, SHA256), ("stock", True, "")]
)
def test_signatures_of_the_tool_itself_are_verified(key: PublicKey, name: str, is_prehashed: bool, stated: str) -> None:
    signature = vector(name)
    assert (signature.is_prehashed, signature.states(key)) == (is_prehashed, stated)
    assert signature.covers(ARTIFACT, key)


@pytest.mark.parametrize("name", ["stated", "legacy"])
def test_another_file_another_key_and_another_comment_are_refused(key: PublicKey, name: str, tmp_path: Path) -> None:
    signature, other = vector(name), SecretKey.make().public()
    changed = tmp_path / "artifact.bin"
    changed.write_bytes(ARTIFACT.read_bytes() + b"!")
    assert not signature.covers(changed, key)
    assert signature.states(other) == ""
    assert signature.states(PublicKey(key.id, other.key)) == ""
    text = (VECTORS / f"{name}.minisig").read_text().replace(SHA256, "0" * 64)
    assert read_signatures(text)[0].states(key) == ""


def test_what_we_sign_states_the_digest_and_a_key_survives_its_file() -> None:
    secret = read_secret(SecretKey.make().secret_text())
    signature = read_signatures(secret.sign(ARTIFACT, sha256=SHA256))[0]
    key = read_key(secret.public_text())
    assert (key.id, signature.states(key), signature.covers(ARTIFACT, key)) == (secret.id, SHA256, True)


def test_several_signatures_stand_in_one_file() -> None:
    keys = [SecretKey.make(), SecretKey.make()]
    read = read_signatures("".join(key.sign(ARTIFACT, sha256=SHA256) for key in keys))
    assert [signature.key_id for signature in read] == [key.id for key in keys]


@pytest.mark.parametrize("text", ["", "nonsense", "untrusted comment: x\nQQ==\ntrusted comment: y\nQQ==", "x\n" * 80])
def test_what_is_no_signature_is_refused(text: str) -> None:
    with pytest.raises(BadSignature):
        read_signatures(text)


@pytest.mark.parametrize("text", ["", "RWQ=", "-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----\n"])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(BadKey):
        read_key(text)


def test_a_damaged_secret_key_is_refused() -> None:
    text = SecretKey.make().secret_text()
    line = text.split("\n")[1]
    with pytest.raises(BadKey):
        read_secret(text.replace(line, line[:100] + ("A" if line[100] != "A" else "B") + line[101:]))


def test_a_signature_that_cosign_made_does_not_count_as_a_statement_of_minisign() -> None:
    """The text after its first 64 bytes would be the comment; an attestation quotes what others wrote."""
    private = Ed25519PrivateKey.generate()
    key = read_key(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())
    sbom = json.dumps({"predicateType": "https://spdx.dev/Document", "comment": f"built from sha256:{SHA256} today"})
    message = encoded_for_signing("application/vnd.in-toto+json", sbom.encode())
    first = b"ED" + bytes.fromhex(key.id)[::-1] + message[:64]
    lines = (
        "untrusted comment: x",
        base64.b64encode(first).decode(),
        f"trusted comment: {message[64:].decode()}",
        base64.b64encode(private.sign(message)).decode(),
    )
    assert read_signatures("\n".join(lines))[0].states(key) == ""


def test_a_signature_that_minisign_made_does_not_count_as_one_of_cosign() -> None:
    """minisign's old form signs the file itself, whatever it contains."""
    secret = SecretKey.make()
    payload = json.dumps(
        {
            "critical": {
                "type": "cosign container image signature",
                "image": {"docker-manifest-digest": f"sha256:{SHA256}"},
                "identity": {},
            }
        }
    ).encode()
    signature = base64.b64encode(secret.key.sign(payload)).decode()
    assert simple_signers(payload, signature, f"sha256:{SHA256}", [read_key(secret.public_text())]) == set()
