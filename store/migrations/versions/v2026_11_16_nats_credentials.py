"""The NATS credentials of nodes, so that they can be revoked."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_16_nats_credentials"
down_revision = "2026_11_16_galleries"

_WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "nats_credentials",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("expires_at", _WHEN, nullable=False),
        sa.Column("revoked_at", _WHEN),
        sa.PrimaryKeyConstraint("user", name="pk_nats_credentials"),
    )
    op.create_index("ix_nats_credentials_node_id", "nats_credentials", ["node_id"])
    op.create_index(
        "ix_nats_credentials_revoked",
        "nats_credentials",
        ["expires_at"],
        postgresql_where=sa.text("revoked_at IS NOT NULL"),
    )


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
