"""Batches, holds and what operations need for them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_16_batches"
down_revision = "2026_11_16_access"

_WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("request", postgresql.JSONB(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("at", _WHEN, nullable=False),
        sa.Column("created_at", _WHEN, nullable=False),
        sa.Column("ended_at", _WHEN),
        sa.PrimaryKeyConstraint("batch_id", name="pk_batches"),
    )
    op.create_index("ix_batches_created_at", "batches", ["created_at"])
    op.create_table(
        "batch_members",
        sa.Column(
            "batch_id",
            sa.Text(),
            sa.ForeignKey("batches.batch_id", name="fk_batch_members_batch_id_batches", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("node_name", sa.Text(), nullable=False),
        sa.Column("op_id", sa.Text()),
        sa.Column("joined", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.Text()),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "node_id", name="pk_batch_members"),
    )
    op.create_index("ix_batch_members_op_id", "batch_members", ["op_id"])
    op.create_table(
        "holds",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("held_by", sa.Text(), nullable=False),
        sa.Column("held_at", _WHEN, nullable=False),
        sa.Column("released_by", sa.Text()),
        sa.Column("released_at", _WHEN),
        sa.PrimaryKeyConstraint("id", name="pk_holds"),
    )
    op.create_index(
        "uq_holds_in_force",
        "holds",
        [sa.text("(released_at IS NULL)")],
        unique=True,
        postgresql_where=sa.text("released_at IS NULL"),
    )
    op.add_column("operations", sa.Column("cleared_at", _WHEN))
    op.create_index(
        "ix_operations_ended_at",
        "operations",
        ["ended_at", "op_id"],
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
