"""Signatures and trust lists: changed content and foreign keys are rejected."""

import errno
import stat
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nodesmith.contracts.nats.orders import Order, TrustChain
from nodesmith.domain.errors import InvalidRequest, OrderNotSigned, ServiceUnavailable
from nodesmith.domain.kinds import Kind
from nodesmith.runtime import keyring as keys
from nodesmith.runtime.keyring import Keyring
from nodesmith.runtime.signing import ORDER, TRUST, BadSignature, SigningKey, VerifyKey
from nodesmith.runtime.trust_lists import NotTrusted, first_contact, follow, root_fingerprint
from tests.orders import new_keyring

KEY = SigningKey.create()
PUBLIC = VerifyKey.from_text(KEY.public)
PAYLOAD = '{"node":"n1","uri":"https://example.org/a.tar.gz"}'
SIGNED = KEY.seal(ORDER, PAYLOAD)
DAY_MS = 24 * 3600 * 1000


class Clock:
    now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now


@given(st.text())
def test_any_text_is_signed_and_verified(payload: str) -> None:
    assume(payload.isprintable())
    sealed = KEY.seal(ORDER, payload)
    PUBLIC.verify(ORDER, sealed.payload, sealed.signature)


@given(st.text(), st.integers(0, len(PAYLOAD)), st.integers(0, 5))
def test_changed_payload_is_refused(inserted: str, at: int, dropped: int) -> None:
    changed = PAYLOAD[:at] + inserted + PAYLOAD[at + dropped :]
    assume(changed != PAYLOAD)
    with pytest.raises(BadSignature):
        PUBLIC.verify(ORDER, changed, SIGNED.signature)


@given(st.text(max_size=100))
def test_changed_signature_is_refused(signature: str) -> None:
    assume(signature != SIGNED.signature)
    with pytest.raises(BadSignature):
        PUBLIC.verify(ORDER, PAYLOAD, signature)


def test_signature_is_for_one_purpose_and_one_key() -> None:
    with pytest.raises(BadSignature):
        PUBLIC.verify(TRUST, PAYLOAD, SIGNED.signature)
    with pytest.raises(BadSignature):
        VerifyKey.from_text(SigningKey.create().public).verify(ORDER, PAYLOAD, SIGNED.signature)


def an_order(iat: int = 1) -> Order:
    return Order(node="n1", op_id="op", kind=Kind.INSTALL, family="echo", iat=iat, exp=iat + DAY_MS)


def test_rotated_key_is_good_for_two_days_more_and_nodes_follow(tmp_path: Path) -> None:
    clock = Clock()
    keys.create_keys(tmp_path / "keys", now=clock)
    keyring = Keyring.opened(tmp_path / "keys", now=clock)
    pinned, old = keyring.chain().newest, keyring.sign(an_order())
    replica = Keyring.opened(tmp_path / "keys", now=clock)
    trusted = keyring.rotate()
    assert keyring.sign(an_order()).kid == replica.sign(an_order()).kid == trusted.keys[0].kid != old.kid
    assert [key.until - clock() for key in trusted.keys] == [400 * DAY_MS, 2 * DAY_MS]
    assert replica.read(old) == an_order()
    assert follow(pinned, keyring.chain()).payload == keyring.chain().newest.payload


def test_revoked_key_is_refused_and_its_orders_are_not_read(tmp_path: Path) -> None:
    keyring = new_keyring(tmp_path / "keys")
    old = keyring.sign(an_order())
    assert len(keyring.rotate(revoke=True).keys) == 1
    with pytest.raises(OrderNotSigned, match=old.kid):
        keyring.read(old)


def test_nodes_follow_a_new_root_but_no_foreign_one(tmp_path: Path) -> None:
    ours, foreign = new_keyring(tmp_path / "ours"), new_keyring(tmp_path / "foreign")
    pinned, first = ours.chain().newest, ours.fingerprint
    ours.rotate(root=True)
    assert ours.fingerprint != first
    assert root_fingerprint(follow(pinned, ours.chain())) == ours.fingerprint
    ours.rotate()
    foreign.rotate()
    forged = TrustChain(lists=[*ours.chain().lists[:1], foreign.chain().lists[1]])
    with pytest.raises(NotTrusted, match="not signed by the root"):
        follow(pinned, forged)
    with pytest.raises(NotTrusted, match="other keys than the ones"):
        follow(pinned, foreign.chain())


def test_root_key_survives_a_replacement_that_fails_after_one_that_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after the chain names the new root, which is in the file of the next root only."""
    ours = new_keyring(tmp_path)
    old = (tmp_path / keys.ROOT).read_text()
    ours.rotate(root=True)
    (tmp_path / keys.ROOT).rename(tmp_path / f"{keys.ROOT}.next")
    (tmp_path / keys.ROOT).write_text(old)
    pinned, write = ours.chain().newest, keys._write

    def full_disk(path: Path, text: str) -> None:
        if path.name == keys.CHAIN:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    monkeypatch.setattr(keys, "_write", full_disk)
    with pytest.raises(ServiceUnavailable, match="No space left"):
        ours.rotate(root=True)
    monkeypatch.undo()
    ours.rotate(root=True)
    assert root_fingerprint(follow(pinned, ours.chain())) == ours.fingerprint


def test_public_chain_makes_no_key_readable_for_others(tmp_path: Path) -> None:
    ours = new_keyring(tmp_path)
    (tmp_path / keys.CHAIN).chmod(0o644)
    ours.rotate(root=True)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes.pop(keys.CHAIN) == 0o644
    assert all(mode & 0o007 == 0 for mode in modes.values()), modes


def test_older_list_never_replaces_a_newer_pin(tmp_path: Path) -> None:
    keyring = new_keyring(tmp_path / "keys")
    keyring.rotate()
    newest = keyring.chain().newest
    assert follow(newest, TrustChain(lists=keyring.chain().lists[:1])) == newest


def test_first_contact_compares_the_fingerprint(tmp_path: Path) -> None:
    ours, foreign = new_keyring(tmp_path / "ours"), new_keyring(tmp_path / "foreign")
    assert first_contact(ours.chain(), ours.fingerprint) == ours.chain().newest
    with pytest.raises(NotTrusted, match="not the control plane of the invite"):
        first_contact(foreign.chain(), ours.fingerprint)
    with pytest.raises(NotTrusted):
        first_contact(TrustChain(lists=[]))


def test_key_that_ends_soon_is_due(tmp_path: Path) -> None:
    clock = Clock()
    keys.create_keys(tmp_path / "keys", now=clock)
    keyring = Keyring.opened(tmp_path / "keys", now=clock)
    assert not keyring.is_due()
    clock.now += 371 * DAY_MS
    assert keyring.is_due()
    keyring.rotate()
    assert not keyring.is_due()


def test_api_without_keys_does_not_start(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(InvalidRequest, match="NODESMITH_ORDER_KEYS"):
            Keyring.opened(folder)
