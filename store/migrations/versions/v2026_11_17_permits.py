"""Operations record what was sent to the node; events distinguish two results of one transition."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_17_permits"
down_revision = "2026_11_16_boot_at"


def upgrade() -> None:
    op.add_column("operations", sa.Column("sent", sa.BigInteger, server_default=sa.text("0"), nullable=False))
    op.add_column("operations", sa.Column("sent_by", sa.Text, server_default=sa.text("''"), nullable=False))
    op.execute("UPDATE operations SET sent = 1 WHERE dispatched_at IS NOT NULL")
    op.drop_constraint("uq_operation_events_op_id_run_id_seq", "operation_events")
    op.create_index(
        "uq_operation_events_told",
        "operation_events",
        ["op_id", "run_id", "seq", "state", sa.text("coalesce(reason, '')")],
        unique=True,
    )


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
