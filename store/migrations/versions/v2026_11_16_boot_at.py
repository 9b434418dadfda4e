"""When the process that is a node registered: of two that start at the same instant, one is the node."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_16_boot_at"
down_revision = "2026_11_16_audit_outcome"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("boot_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
