"""Galleries, uploads, digests of tags, and access to hosts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_16_galleries"
down_revision = "2026_11_16_batches"

_WHEN = sa.DateTime(timezone=True)
_JSON = postgresql.JSONB()


def upgrade() -> None:
    _galleries()
    _uploads()
    _sources()


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")


def _galleries() -> None:
    op.create_table(
        "galleries",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("mirrors", _JSON, nullable=False),
        sa.Column("insecure", sa.Boolean(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _WHEN, nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("fetched_at", _WHEN, nullable=False),
        sa.Column("checked_at", _WHEN, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("cooling", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_galleries"),
    )


def _uploads() -> None:
    op.create_table(
        "uploads",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("entry", _JSON, nullable=False),
        sa.Column("uploaded_by", sa.Text(), nullable=False),
        sa.Column("uploaded_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name="pk_uploads"),
    )


def _sources() -> None:
    op.create_table(
        "tag_digests",
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("checked_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("reference", name="pk_tag_digests"),
    )
    op.create_table(
        "sources",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("has_password", sa.Boolean(), nullable=False),
        sa.Column("has_ca", sa.Boolean(), nullable=False),
        sa.Column("has_proxy", sa.Boolean(), nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.Column("updated_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("host", name="pk_sources"),
    )
