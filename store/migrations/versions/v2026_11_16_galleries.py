"""Galleries, uploads and their sources."""

revision = "2026_11_16_galleries"
down_revision = "2026_11_16_batches"


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
