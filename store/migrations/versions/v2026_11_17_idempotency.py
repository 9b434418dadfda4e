"""A key holds the digest of the whole request, a fresh id, and the job that it became. Older keys are forgotten."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_17_idempotency"
down_revision = "2026_11_17_monitor_ticks"


def upgrade() -> None:
    op.execute("DELETE FROM idempotency_keys")  # they name an intent, not a request: nothing to compare with
    op.drop_column("idempotency_keys", "intent")
    op.add_column("idempotency_keys", sa.Column("digest", sa.Text(), nullable=False))
    op.add_column("idempotency_keys", sa.Column("job_id", sa.Text()))
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
