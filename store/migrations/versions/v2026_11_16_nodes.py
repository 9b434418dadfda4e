"""Nodes: life, identity and liveness."""

revision = "2026_11_16_nodes"
down_revision = "2026_11_16_first_tables"


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
