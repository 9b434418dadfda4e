"""Nkeys, compared with the output of NATS tools."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nodesmith.bus.nkeys import BadSeed, KeyPair, Role

# the pair that the NATS documentation shows, so that our encoding is checked against theirs
KNOWN_SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
KNOWN_PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def test_a_known_seed_has_its_known_public_key():
    pair = KeyPair.from_seed(KNOWN_SEED)
    assert (pair.role, pair.public, pair.seed) == (Role.USER, KNOWN_PUBLIC, KNOWN_SEED)


@pytest.mark.parametrize(("role", "letter"), [(Role.OPERATOR, "O"), (Role.ACCOUNT, "A"), (Role.USER, "U")])
def test_the_first_letters_tell_the_role(role, letter):
    pair = KeyPair.create(role)
    assert pair.public.startswith(letter)
    assert pair.seed.startswith(f"S{letter}")
    assert KeyPair.from_seed(pair.seed).public == pair.public


def test_a_signature_is_valid_under_the_private_half_of_the_seed():
    pair = KeyPair.create(Role.USER)
    public: Ed25519PublicKey = pair._private.public_key()
    public.verify(pair.sign(b"nonce"), b"nonce")


def test_one_wrong_letter_is_noticed():
    broken = KNOWN_SEED[:-1] + ("A" if KNOWN_SEED[-1] != "A" else "B")
    with pytest.raises(BadSeed):
        KeyPair.from_seed(broken)


@pytest.mark.parametrize("text", ["", "not base32!", KNOWN_PUBLIC, KNOWN_SEED[:20]])
def test_what_is_no_seed_is_refused(text):
    with pytest.raises(BadSeed):
        KeyPair.from_seed(text)


def test_a_key_shows_no_secret_when_printed():
    pair = KeyPair.create(Role.USER)
    assert pair.seed not in repr(pair)
