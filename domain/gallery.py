"""Galleries: their settings, the copies of their indexes, and the archives of the built-in one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from nodesmith.domain.gallery_trust import GalleryPolicy, GalleryTrust

BUILTIN = "builtin"
"""the gallery that the API itself serves: the backends of Nodesmith, and uploads"""


@dataclass(frozen=True, kw_only=True)
class TrustSettings:
    """What the artifacts of a gallery need, as an admin set it."""

    policy: GalleryPolicy = GalleryPolicy.DIGEST
    keys: Sequence[str] = ()
    """public keys that sign artifacts, as text"""
    threshold: int = 1
    root: str = ""
    """TUF root metadata; empty: the index is not signed"""

    def trusted(self) -> GalleryTrust:
        return GalleryTrust(self.policy, tuple(self.keys), self.threshold, has_root=bool(self.root))


@dataclass(frozen=True, kw_only=True)
class GallerySettings(TrustSettings):
    """A gallery as an admin set it: its addresses, and what its artifacts need."""

    name: str
    url: str
    mirrors: Sequence[str] = ()
    """further addresses of the same index, tried in this order"""


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """A gallery with the result of its last read; its keys and its index stay in the database."""

    name: str
    url: str
    mirrors: Sequence[str] = ()
    policy: GalleryPolicy = GalleryPolicy.DIGEST
    key_ids: Sequence[str] = ()
    threshold: int = 1
    signed_index: bool = False
    index_version: int = 0
    index_expires_at: datetime | None = None
    entries: int = 0
    unusable: int = 0
    source: str = ""
    """the address that the copy in use came from"""
    fetched_at: datetime | None = None
    """when the copy in use was last confirmed as the newest"""
    checked_at: datetime | None = None
    """when it was last read, with or without success"""
    error: str = ""
    created_by: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True)
class GalleryCopy:
    """A gallery as last read, and what the next read needs."""

    settings: GallerySettings
    content: str
    source: str
    etag: str
    cooling: Mapping[str, float]
    """failed address -> until when it is skipped (seconds since 1970)"""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """for a signed index: role -> its newest verified document"""
    index_version: int = 0
    index_expires_at: datetime | None = None

    def trust(self) -> GalleryTrust:
        return replace(self.settings.trusted(), version=self.index_version, expires_at=self.index_expires_at)


@dataclass(frozen=True)
class IndexProof:
    """The verified metadata of a signed index, kept so that nothing older is accepted later."""

    root_version: int
    version: int
    """version of the timestamp: it increases with every signing"""
    expires_at: datetime
    metadata: Mapping[str, str]
    length: int
    sha256: str


@dataclass(frozen=True)
class FreshIndex:
    """The result of reading an address; without content, the existing copy is current."""

    source: str
    etag: str
    content: str | None
    cooling: Mapping[str, float]
    proof: IndexProof | None = None


@dataclass(frozen=True, kw_only=True)
class Upload:
    """An archive that was uploaded into the built-in gallery."""

    name: str
    version: str
    description: str = ""
    uri: str = ""
    sha256: str = ""
    size: int = 0
    gallery: str = ""
    tags: tuple[str, ...] = ()
    uploaded_by: str = ""
    uploaded_at: datetime | None = None
