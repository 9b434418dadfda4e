"""Tokens, invites and the audit trail."""

revision = "2026_11_16_access"
down_revision = "2026_11_16_inventory"


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
