"""The signing key and last heartbeat of a node, and the signed outcome of an operation."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_18_node_keys"
down_revision = "2026_11_18_stopped_batches"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("nats_key", sa.Text, server_default=sa.text("''"), nullable=False))
    op.add_column("nodes", sa.Column("beat_seq", sa.BigInteger, server_default=sa.text("0"), nullable=False))
    op.add_column("nodes", sa.Column("beat_at", sa.DateTime(timezone=True)))
    op.add_column("operations", sa.Column("signed_outcome", sa.Text))


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the keys of the nodes.")
