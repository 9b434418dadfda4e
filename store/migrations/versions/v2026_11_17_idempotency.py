"""A key holds the digest of the complete request, a new id, and the started job. Older keys are deleted."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_17_idempotency"
down_revision = "2026_11_17_monitor_ticks"


def upgrade() -> None:
    op.execute("DELETE FROM idempotency_keys")  # they identify an intent, not a request, and cannot be compared
    op.drop_column("idempotency_keys", "intent")
    op.add_column("idempotency_keys", sa.Column("digest", sa.Text(), nullable=False))
    op.add_column("idempotency_keys", sa.Column("job_id", sa.Text()))
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
