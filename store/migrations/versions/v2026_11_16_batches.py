"""Batches, holds and what operations need for them."""

revision = "2026_11_16_batches"
down_revision = "2026_11_16_access"


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
