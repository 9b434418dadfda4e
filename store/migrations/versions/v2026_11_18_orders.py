"""The table of signed orders."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_18_orders"
down_revision = "2026_11_18_node_keys"


def upgrade() -> None:
    op.create_table(
        "orders",
        sa.Column("op_id", sa.Text, nullable=False),
        sa.Column("node_id", sa.Text, nullable=False),
        sa.Column("family", sa.Text, nullable=False),
        sa.Column("iat", sa.BigInteger, nullable=False),
        sa.Column("exp", sa.BigInteger, nullable=False),
        sa.Column("kid", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("signature", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("op_id", name="pk_orders"),
    )
    op.create_index("uq_orders_node_id_family_iat", "orders", ["node_id", "family", "iat"], unique=True)
    op.create_index("ix_orders_exp", "orders", ["exp"])


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
