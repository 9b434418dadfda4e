"""Events are unique by run and number, so that a replayed run writes none twice."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_16_event_runs"
down_revision = "2026_11_16_nats_credentials"


def upgrade() -> None:
    op.add_column("operation_events", sa.Column("run_id", sa.Text(), nullable=False, server_default=""))
    op.execute('UPDATE operation_events SET run_id = CAST("at" AS text)')
    op.alter_column("operation_events", "run_id", server_default=None)
    op.drop_constraint("uq_operation_events_op_id_at_seq", "operation_events")
    op.create_unique_constraint("uq_operation_events_op_id_run_id_seq", "operation_events", ["op_id", "run_id", "seq"])


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
