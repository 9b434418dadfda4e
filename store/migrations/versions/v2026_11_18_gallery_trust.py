"""Trust policy and signed index of a gallery, and token services that may receive a host's password."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_18_gallery_trust"
down_revision = "2026_11_18_orders"

_DOCUMENTS = postgresql.JSONB(astext_type=sa.Text())


def upgrade() -> None:
    op.add_column("galleries", sa.Column("policy", sa.Text(), nullable=False, server_default="digest"))
    op.execute("UPDATE galleries SET policy = 'none' WHERE insecure")
    op.drop_column("galleries", "insecure")
    op.add_column("galleries", sa.Column("keys", _DOCUMENTS, nullable=False, server_default="[]"))
    op.add_column("galleries", sa.Column("threshold", sa.BigInteger(), nullable=False, server_default="1"))
    op.add_column("galleries", sa.Column("root", sa.Text(), nullable=False, server_default=""))
    op.add_column("galleries", sa.Column("metadata", _DOCUMENTS, nullable=False, server_default="{}"))
    op.add_column("galleries", sa.Column("index_root_version", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("galleries", sa.Column("index_version", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("galleries", sa.Column("index_expires_at", sa.DateTime(timezone=True), nullable=True))
    for column in ("policy", "keys", "threshold", "root", "metadata", "index_root_version", "index_version"):
        op.alter_column("galleries", column, server_default=None)
    op.add_column("sources", sa.Column("realms", _DOCUMENTS, nullable=False, server_default="[]"))
    op.alter_column("sources", "realms", server_default=None)


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
