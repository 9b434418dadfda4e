"""Marks a batch that was stopped after too many failures, for members whose nodes return later."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_18_stopped_batches"
down_revision = "2026_11_18_idempotent_answers"


def upgrade() -> None:
    op.add_column("batches", sa.Column("begins_nothing", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
