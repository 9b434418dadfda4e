"""An idempotency key stores the answer of a request that starts no job."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "2026_11_18_idempotent_answers"
down_revision = "2026_11_17_idempotency"


def upgrade() -> None:
    op.add_column("idempotency_keys", sa.Column("status", sa.SmallInteger()))
    op.add_column("idempotency_keys", sa.Column("answer", JSONB()))


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
