"""When a copy of a node's list was marked as stale without an operation."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_18_doubted_inventories"
down_revision = "2026_11_18_trust_versions"


def upgrade() -> None:
    op.add_column("inventory_scans", sa.Column("doubted_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
