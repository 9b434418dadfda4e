"""The trust lists of the installation; an API with another root key does not start."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_18_trust_record"
down_revision = "2026_11_18_doubted_inventories"


def upgrade() -> None:
    op.create_table(
        "trust_record",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("chain", sa.Text, nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trust_record")),
        sa.CheckConstraint("id = 1", name=op.f("ck_trust_record_only_one")),
    )


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
