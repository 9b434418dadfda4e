"""Labels, overrides and the inventory."""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_16_inventory"
down_revision = "2026_11_16_nodes"

_WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    _labels()
    _overrides()
    _inventory()


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")


def _labels() -> None:
    op.create_table(
        "node_labels",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("automatic", sa.Text()),
        sa.Column("by_admin", sa.Text()),
        sa.Column("by_node", sa.Text()),
        sa.Column(
            "value", sa.Text(), sa.Computed("COALESCE(automatic, by_admin, by_node)", persisted=True), nullable=False
        ),
        sa.PrimaryKeyConstraint("node_id", "key", name="pk_node_labels"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_node_labels_node_id_nodes", ondelete="CASCADE"),
        sa.CheckConstraint("length(key) >= 1 AND length(key) <= 128", name=op.f("ck_node_labels_key")),
        sa.CheckConstraint("length(value) <= 255", name=op.f("ck_node_labels_value")),
    )
    op.create_index("ix_node_labels_key_value_node_id", "node_labels", ["key", "value", "node_id"])
    op.execute(
        "INSERT INTO node_labels (node_id, key, by_node)"
        " SELECT nodes.id, left(label.key, 128), left(label.value, 255)"
        " FROM nodes, jsonb_each_text(nodes.labels) AS label (key, value) WHERE label.key <> ''"
        " ON CONFLICT DO NOTHING"
    )
    op.drop_column("nodes", "labels")


def _overrides() -> None:
    op.add_column("nodes", sa.Column("max_replicas_override", sa.BigInteger()))
    op.add_column("nodes", sa.Column("vram_budget_override", sa.Text()))


def _inventory() -> None:
    op.create_index("ix_operations_node_id_ended_at", "operations", ["node_id", "ended_at"])
    op.create_table(
        "installed_backends",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("gallery_url", sa.Text(), nullable=False),
        sa.Column("is_system", sa.Boolean(), nullable=False),
        sa.Column("is_meta", sa.Boolean(), nullable=False),
        sa.Column("installed_at", _WHEN),
        sa.Column("previous_version", sa.Text(), nullable=False),
        sa.Column("previous_digest", sa.Text(), nullable=False),
        sa.Column("seen_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("node_id", "family", name="pk_installed_backends"),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name="fk_installed_backends_node_id_nodes", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_installed_backends_family_node_id", "installed_backends", ["family", "node_id"])
    op.create_table(
        "inventory_scans",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("asked_at", _WHEN, nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", name="pk_inventory_scans"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_inventory_scans_node_id_nodes", ondelete="CASCADE"),
    )
