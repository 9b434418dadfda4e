"""minisign's files; those in `vectors` were made with minisign 0.11 itself."""

import hashlib
from pathlib import Path

import pytest

from nodesmith.gallery.keys import BadKey, PublicKey, read_key
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
