"""The trust list that each node has, to show which nodes still accept a revoked key."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_18_trust_versions"
down_revision = "2026_11_18_gallery_trust"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("trust_version", sa.BigInteger, server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
