"""When the current process of a node registered, to decide between two that start at the same time."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_16_boot_at"
down_revision = "2026_11_16_audit_outcome"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("boot_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
