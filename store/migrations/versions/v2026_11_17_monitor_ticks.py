"""The last completed tick of the fleet monitor: workers restart a silent one."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_17_monitor_ticks"
down_revision = "2026_11_17_permits"


def upgrade() -> None:
    op.create_table(
        "monitor_ticks",
        sa.Column("monitor", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("ticked_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("monitor", name="pk_monitor_ticks"),
    )


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
