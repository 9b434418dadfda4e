"""The tables of the catalogue: galleries with their last copies, uploads, digests of tags, access data of hosts."""

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, LargeBinary
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from nodesmith.store.tables.core import Base


class GalleryRow(Base):
    """A gallery with its last good copy, which all replicas share."""

    __tablename__ = "galleries"

    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(Identity(always=True))
    """order of precedence: galleries added first win"""
    url: Mapped[str]
    mirrors: Mapped[list[str]] = mapped_column(JSONB)
    policy: Mapped[str]
    keys: Mapped[list[str]] = mapped_column(JSONB)
    """public keys that sign artifacts"""
    threshold: Mapped[int]
    root: Mapped[str]
    """TUF root metadata as the admin gave it; empty: the index is not signed"""
    documents: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB)
    """role -> its newest verified TUF document; older ones are refused"""
    index_root_version: Mapped[int]
    index_version: Mapped[int]
    index_expires_at: Mapped[datetime | None]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    content: Mapped[str]
    digest: Mapped[str]
    etag: Mapped[str]
    source: Mapped[str]
    fetched_at: Mapped[datetime]
    checked_at: Mapped[datetime]
    error: Mapped[str]
    cooling: Mapped[dict[str, Any]]
    """address -> end of its back-off (seconds since 1970)"""


class UploadRow(Base):
    """An archive in the folder of the built-in gallery."""

    __tablename__ = "uploads"

    name: Mapped[str] = mapped_column(primary_key=True)
    """in the spelling of families, so that one name has one row"""
    version: Mapped[str] = mapped_column(primary_key=True)
    entry: Mapped[dict[str, Any]]
    uploaded_by: Mapped[str]
    uploaded_at: Mapped[datetime]


class TagDigestRow(Base):
    """The digest of a tag when its registry was last asked."""

    __tablename__ = "tag_digests"

    reference: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    checked_at: Mapped[datetime]


class SourceRow(Base):
    """Access data of a host; password, certificates and proxy are encrypted with a key outside the database."""

    __tablename__ = "sources"

    host: Mapped[str] = mapped_column(primary_key=True)
    username: Mapped[str]
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    has_password: Mapped[bool]
    has_ca: Mapped[bool]
    has_proxy: Mapped[bool]
    realms: Mapped[list[str]] = mapped_column(JSONB)
    """hosts of token services that may also receive the password"""
    updated_by: Mapped[str]
    updated_at: Mapped[datetime]
