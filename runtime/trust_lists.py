"""Trust lists: each is signed by the root of its predecessor, so a reader can follow them from its pinned list."""

from nodesmith.contracts.nats.orders import SignedTrustList, TrustChain, TrustList
from nodesmith.domain.trust_lists import Relation
from nodesmith.runtime.signing import TRUST, BadSignature, SigningKey, VerifyKey, fingerprint

PREFIX = "sha256:"


class NotTrusted(Exception):
    """The keys of the control plane are not the ones that this reader trusts."""


def sign_list(trusted: TrustList, *, root: SigningKey, before: SigningKey | None = None) -> SignedTrustList:
    """Sign a list. `before`: the root of the previous version, if it differs."""
    payload = trusted.model_dump_json()
    if before is None or before.kid == root.kid:
        return SignedTrustList(payload=payload, signature=root.sign(TRUST, payload))
    return SignedTrustList(payload=payload, signature=before.sign(TRUST, payload), own=root.sign(TRUST, payload))


def read_list(signed: SignedTrustList) -> TrustList:
    """Parse a list; call this only after its signature was verified."""
    return TrustList.model_validate_json(signed.payload)


def first_contact(chain: TrustChain, trust: str = "") -> SignedTrustList:
    """Verify a chain from its first list and return its newest. `trust`: the required fingerprint of its root."""
    if not chain.lists:
        raise NotTrusted("The control plane sent no keys.")
    first = chain.lists[0]
    _verify(first, read_list(first).root)
    newest = _follow_from(first, chain)
    if trust and root_fingerprint(newest) != trust.lower():
        raise NotTrusted(
            f"This is not the control plane of the invite: the fingerprint of its root key is "
            f"{root_fingerprint(newest)}, not {trust}. Nothing was sent there."
        )
    return newest


def follow(pinned: SignedTrustList, chain: TrustChain) -> SignedTrustList:
    """Return the newest list that can be verified from the pinned one, or the pinned one itself."""
    version = read_list(pinned).version
    same = [each for each in chain.lists if read_list(each).version == version]
    if same and same[0].payload != pinned.payload:
        raise NotTrusted(
            "The control plane has other keys than the ones that this node trusts. If its root key was replaced, "
            "join again: `nodesmith nodes invite` prints the line, with --trust."
        )
    return _follow_from(pinned, chain)


def relation(own: TrustChain, other: TrustChain) -> Relation:
    """Return how two chains relate; a chain that forks from the other is foreign."""
    ahead = read_list(own.newest).version - read_list(other.newest).version
    shorter, longer = (own, other) if ahead < 0 else (other, own)
    try:
        follow(shorter.newest, longer)
    except NotTrusted:
        return Relation.FOREIGN
    return Relation.OLDER if ahead < 0 else Relation.NEWER if ahead else Relation.SAME


def root_fingerprint(signed: SignedTrustList) -> str:
    return f"{PREFIX}{fingerprint(read_list(signed).root)}"


def _follow_from(known: SignedTrustList, chain: TrustChain) -> SignedTrustList:
    for signed in chain.lists:
        current, following = read_list(known), read_list(signed)
        if following.version <= current.version:
            continue
        if following.version != current.version + 1:
            raise NotTrusted(f"The trust list of version {current.version + 1} is missing.")
        _verify(signed, current.root)
        known = signed
    return known


def _verify(signed: SignedTrustList, root: str) -> None:
    try:
        VerifyKey.from_text(root).verify(TRUST, signed.payload, signed.signature)
        own = read_list(signed).root
        if own != root:
            VerifyKey.from_text(own).verify(TRUST, signed.payload, signed.own)
    except (BadSignature, ValueError) as error:
        raise NotTrusted("A trust list is not signed by the root key of its previous version.") from error
