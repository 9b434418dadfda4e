"""Tokens of clients, which may call models and nothing else."""

from alembic import op

revision = "2026_11_18_client_role"
down_revision = "2026_11_18_models"


def upgrade() -> None:
    op.drop_constraint(op.f("ck_tokens_role"), "tokens")
    op.create_check_constraint(op.f("ck_tokens_role"), "tokens", "role IN ('admin', 'client', 'operator', 'viewer')")


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the tokens of clients.")
