"""Tokens, invites and the audit trail."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_16_access"
down_revision = "2026_11_16_inventory"

_WHEN = sa.DateTime(timezone=True)
_JSON = postgresql.JSONB()


def upgrade() -> None:
    _tokens()
    _roles_of_browsers()
    _invites()
    _audit()


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _WHEN, nullable=False),
        sa.Column("expires_at", _WHEN),
        sa.Column("revoked_at", _WHEN),
        sa.Column("last_used_at", _WHEN),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("token_hash", name="uq_tokens_token_hash"),
        sa.CheckConstraint("role IN ('admin', 'operator', 'viewer')", name=op.f("ck_tokens_role")),
    )
    op.create_index(
        "ix_tokens_live_name", "tokens", ["name"], unique=True, postgresql_where=sa.text("revoked_at IS NULL")
    )


def _roles_of_browsers() -> None:
    """Sign out all browsers: their sessions have no role, and a new sign-in adds one."""
    for table in ("sign_in_codes", "sessions"):
        op.execute(f"DELETE FROM {table}")  # noqa: S608 - the two names above
        op.add_column(table, sa.Column("role", sa.Text(), nullable=False))
        op.add_column(table, sa.Column("token_id", sa.Text(), nullable=False))


def _invites() -> None:
    op.create_table(
        "invites",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("approve", sa.Boolean(), nullable=False),
        sa.Column("uses", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("labels", _JSON, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _WHEN, nullable=False),
        sa.Column("expires_at", _WHEN, nullable=False),
        sa.Column("revoked_at", _WHEN),
        sa.PrimaryKeyConstraint("id", name="pk_invites"),
        sa.UniqueConstraint("token_hash", name="uq_invites_token_hash"),
        sa.CheckConstraint("used >= 0 AND used <= uses", name=op.f("ck_invites_used")),
    )
    op.create_table(
        "invite_uses",
        sa.Column("invite_id", sa.Text(), nullable=False),
        sa.Column("node_name", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("invite_id", "node_name", "machine_id", name="pk_invite_uses"),
        sa.ForeignKeyConstraint(
            ["invite_id"], ["invites.id"], name="fk_invite_uses_invite_id_invites", ondelete="CASCADE"
        ),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", _WHEN, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Text(), nullable=False),
        sa.Column("before", _JSON),
        sa.Column("after", _JSON),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_actor_id", "audit", ["actor", "id"])
    op.create_index("ix_audit_target_id", "audit", ["target", "id"])
    op.create_index("ix_audit_target_id_id", "audit", ["target_id", "id"])
    op.create_index("ix_audit_action_id", "audit", ["action", "id"])
