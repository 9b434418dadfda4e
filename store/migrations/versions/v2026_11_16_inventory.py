"""Labels, overrides and the inventory."""

revision = "2026_11_16_inventory"
down_revision = "2026_11_16_nodes"


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
