"""Digest and signature requirements for the artifacts of a gallery."""

from dataclasses import dataclass
from datetime import datetime

from nodesmith.domain.wire_enum import WireEnum


class GalleryPolicy(WireEnum):
    """The requirements, from weakest to strongest; the default is `digest`."""

    NONE = "none"
    """archives may lack a sha256"""
    DIGEST = "digest"
    """archives need a sha256 in the index; an image is pinned to the digest of its tag at admission"""
    SIGNED = "signed"
    """a signature is required too: of the index (TUF), of each artifact, or of both, as `GalleryTrust` says"""


@dataclass(frozen=True)
class GalleryTrust:
    """The keys that verify a gallery's artifacts, and the signed index in use."""

    policy: GalleryPolicy = GalleryPolicy.DIGEST
    keys: tuple[str, ...] = ()
    """public keys for artifacts, as text: minisign or PEM"""
    threshold: int = 1
    """how many different keys must have signed an artifact"""
    has_root: bool = False
    """the index is signed with TUF metadata, verified from a root that an admin provided"""
    version: int = 0
    expires_at: datetime | None = None

    @property
    def needs_signatures(self) -> bool:
        """Whether each artifact needs its own signature."""
        return self.policy is GalleryPolicy.SIGNED and bool(self.keys)

    @property
    def needs_signed_index(self) -> bool:
        return self.policy is GalleryPolicy.SIGNED and self.has_root
