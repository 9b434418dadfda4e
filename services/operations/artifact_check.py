"""Checks an artifact against the policy of its gallery when its digest is pinned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from nodesmith.contracts.temporal.operations import Intent
from nodesmith.domain.addresses import without_query
from nodesmith.domain.errors import IndexExpired, NotSigned
from nodesmith.domain.gallery_trust import GalleryPolicy, GalleryTrust
from nodesmith.gallery.artifact_keys import read_key


class Signatures(Protocol):
    """Published signatures; raises `RegistryDown` when no registry answers."""

    async def signers(self, uris: Sequence[str], sha256: str, keys: Sequence[str]) -> set[str]: ...


@dataclass(frozen=True)
class ArtifactCheck:
    """Verifies artifacts in the control plane; the order pins the digest, so nodes need no gallery keys."""

    signatures: Signatures
    clock: Callable[[], datetime]

    async def verify(self, wanted: Intent, trust: GalleryTrust) -> str:
        """Describe how the artifact was verified; raises when it does not meet the policy."""
        if not wanted.gallery:
            return "sha256 of the request" if wanted.sha256 else "not verified: no sha256 was given"
        self._refuse_expired(wanted, trust)
        proof = origin(wanted.gallery, trust, has_digest=bool(wanted.sha256))
        if not trust.needs_signatures:
            return proof
        return f"{proof}; signed by {', '.join(await self._signers(wanted, trust))}"

    def _refuse_expired(self, wanted: Intent, trust: GalleryTrust) -> None:
        if trust.needs_signed_index and (trust.expires_at is None or trust.expires_at <= self.clock()):
            raise IndexExpired(
                f"The signed index of the gallery {wanted.gallery} has expired, and no newer one was accepted.",
                gallery=wanted.gallery,
            )

    async def _signers(self, wanted: Intent, trust: GalleryTrust) -> list[str]:
        found = await self.signatures.signers((wanted.uri, *wanted.mirrors), wanted.sha256, trust.keys)
        if len(found) >= trust.threshold:
            return sorted(found)
        had = f"signatures of {len(found)} trusted keys, {trust.threshold} are needed" if found else "none was found"
        raise NotSigned(
            f"{without_query(wanted.uri)} needs a signature by a key that the gallery {wanted.gallery} trusts: {had}.",
            gallery=wanted.gallery,
            backend=wanted.backend,
        )


def requirement(gallery: str, trust: GalleryTrust) -> str:
    """Describe what an install from the gallery will be checked against."""
    digest = origin(gallery, trust, has_digest=trust.policy is not GalleryPolicy.NONE)
    if not trust.needs_signatures:
        return digest
    ids = ", ".join(read_key(text).id for text in trust.keys)
    return f"{digest}; signatures by {trust.threshold} of the keys {ids}"


def origin(gallery: str, trust: GalleryTrust, *, has_digest: bool) -> str:
    """Describe where the digest comes from."""
    if not has_digest and trust.policy is GalleryPolicy.NONE:
        return f"not verified: the policy of the gallery {gallery} is `none`"
    if trust.needs_signed_index:
        return f"sha256 from the signed index of the gallery {gallery}, version {trust.version}"
    return f"sha256 from the gallery {gallery}"
