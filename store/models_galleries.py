"""The tables of galleries: where they are and what they last said, uploads, digests of tags, access to hosts."""

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, LargeBinary
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from store.models import Base


class GalleryRow(Base):
    """A gallery with its last good copy: every replica reads the same one."""

    __tablename__ = "galleries"

    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(Identity(always=True))
    """those added first win"""
    url: Mapped[str]
    mirrors: Mapped[list[str]] = mapped_column(JSONB)
    insecure: Mapped[bool]
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
    """address -> until when it is not asked again (seconds since 1970)"""


class UploadRow(Base):
    """An archive in the folder of the built-in gallery."""

    __tablename__ = "uploads"

    name: Mapped[str] = mapped_column(primary_key=True)
    """as families are written, so that no spelling is there twice"""
    version: Mapped[str] = mapped_column(primary_key=True)
    entry: Mapped[dict[str, Any]]
    uploaded_by: Mapped[str]
    uploaded_at: Mapped[datetime]


class TagDigestRow(Base):
    """What a tag stood for when its registry was last asked."""

    __tablename__ = "tag_digests"

    reference: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    checked_at: Mapped[datetime]


class SourceRow(Base):
    """How a host is reached; password, certificates and proxy are sealed with a key that is not in the database."""

    __tablename__ = "sources"

    host: Mapped[str] = mapped_column(primary_key=True)
    username: Mapped[str]
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    has_password: Mapped[bool]
    has_ca: Mapped[bool]
    has_proxy: Mapped[bool]
    updated_by: Mapped[str]
    updated_at: Mapped[datetime]
