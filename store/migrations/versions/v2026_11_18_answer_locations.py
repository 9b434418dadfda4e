"""An idempotency key stores the `Location` of the answer too."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_18_answer_locations"
down_revision = "2026_11_18_trust_record"


def upgrade() -> None:
    op.add_column("idempotency_keys", sa.Column("location", sa.Text()))


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
