"""An audit entry is written before its change is made; its outcome is added afterwards."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_16_audit_outcome"
down_revision = "2026_11_16_event_runs"


def upgrade() -> None:
    op.add_column("audit", sa.Column("outcome", sa.Text(), nullable=False, server_default="done"))
    op.alter_column("audit", "outcome", server_default=None)
    op.create_check_constraint(op.f("ck_audit_outcome"), "audit", "outcome IN ('done', 'unknown')")


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
