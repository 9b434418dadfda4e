"""Nodes: lifecycle, identity and liveness."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_16_nodes"
down_revision = "2026_11_16_first_tables"

_WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("nodes", sa.Column("rival_seen_at", _WHEN))
    op.create_table(
        "retired_credentials",
        sa.Column("credential_hash", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("node_name", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("retired_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("credential_hash", name="pk_retired_credentials"),
    )
    op.create_index("ix_retired_credentials_node_id", "retired_credentials", ["node_id"])


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
