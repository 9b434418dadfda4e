"""Models: rules, load specifications, replicas, holds of routers, and the notifications about them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_18_models"
down_revision = "2026_11_18_answer_locations"

_WHEN = sa.DateTime(timezone=True)
_EMPTY, _ZERO, _NOW = sa.text("''"), sa.text("0"), sa.text("now()")

_SUBTRACT = """
CREATE FUNCTION subtract_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE replicas SET in_flight = in_flight - OLD.in_flight WHERE id = OLD.replica_id AND OLD.in_flight > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER subtract_hold AFTER DELETE ON replica_holds FOR EACH ROW EXECUTE FUNCTION subtract_hold();
"""

_NOTIFY = """
CREATE FUNCTION notify_replica() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('routes', coalesce(NEW.model_name, OLD.model_name));
    PERFORM pg_notify('placement', CASE TG_OP WHEN 'DELETE' THEN 'capacity' ELSE '' END);
    RETURN NULL;
END $$;
CREATE TRIGGER notify_added AFTER INSERT OR DELETE ON replicas FOR EACH ROW EXECUTE FUNCTION notify_replica();
CREATE TRIGGER notify_changed AFTER UPDATE OF state, address ON replicas FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR OLD.address <> NEW.address) EXECUTE FUNCTION notify_replica();

CREATE FUNCTION notify_model() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('routes', coalesce(NEW.name, OLD.name));
    PERFORM pg_notify('placement', 'capacity');
    RETURN NULL;
END $$;
CREATE TRIGGER notify_added AFTER INSERT OR DELETE ON models FOR EACH ROW EXECUTE FUNCTION notify_model();
CREATE TRIGGER notify_changed AFTER UPDATE OF revision ON models FOR EACH ROW
    WHEN (OLD.revision <> NEW.revision) EXECUTE FUNCTION notify_model();

CREATE FUNCTION notify_wanted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('placement', '');
    RETURN NULL;
END $$;
CREATE TRIGGER notify_wanted AFTER UPDATE OF wanted_at ON models FOR EACH ROW
    WHEN (OLD.wanted_at IS DISTINCT FROM NEW.wanted_at) EXECUTE FUNCTION notify_wanted();

CREATE FUNCTION notify_rule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('routes', coalesce(NEW.model_name, OLD.model_name));
    PERFORM pg_notify('placement', 'capacity');
    RETURN NULL;
END $$;
CREATE TRIGGER notify_rule AFTER INSERT OR UPDATE OR DELETE ON model_rules FOR EACH ROW
    EXECUTE FUNCTION notify_rule();

CREATE FUNCTION notify_node() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('routes', '');
    PERFORM pg_notify('placement', 'capacity');
    RETURN NULL;
END $$;
CREATE TRIGGER notify_added AFTER INSERT OR DELETE ON nodes FOR EACH ROW EXECUTE FUNCTION notify_node();
CREATE TRIGGER notify_changed AFTER UPDATE ON nodes FOR EACH ROW
    WHEN (OLD.approved_at IS DISTINCT FROM NEW.approved_at
        OR OLD.drained_at IS DISTINCT FROM NEW.drained_at
        OR OLD.leaving_at IS DISTINCT FROM NEW.leaving_at
        OR OLD.left_at IS DISTINCT FROM NEW.left_at
        OR OLD.unreachable_since IS DISTINCT FROM NEW.unreachable_since
        OR OLD.boot_id <> NEW.boot_id
        OR OLD.node_type <> NEW.node_type
        OR OLD.max_replicas_per_model <> NEW.max_replicas_per_model
        OR OLD.max_replicas_override IS DISTINCT FROM NEW.max_replicas_override
        OR OLD.vram_budget <> NEW.vram_budget
        OR OLD.vram_budget_override IS DISTINCT FROM NEW.vram_budget_override
        OR OLD.resources -> 'total_vram' IS DISTINCT FROM NEW.resources -> 'total_vram'
        OR OLD.resources -> 'total_ram' IS DISTINCT FROM NEW.resources -> 'total_ram'
        OR OLD.resources -> 'total_disk' IS DISTINCT FROM NEW.resources -> 'total_disk'
        OR OLD.last_heartbeat IS NULL AND NEW.last_heartbeat IS NOT NULL
        OR NEW.last_heartbeat - OLD.last_heartbeat > interval '60 seconds')
    EXECUTE FUNCTION notify_node();
CREATE TRIGGER notify_labels AFTER INSERT OR UPDATE OR DELETE ON node_labels FOR EACH STATEMENT
    EXECUTE FUNCTION notify_node();
"""
"""`routes`: the replicas that get calls may have changed (payload: the model, or empty for all).
`placement`: the scheduler has something to look at; `capacity`: what did not fit may fit now. Sent after the commit."""


def upgrade() -> None:
    op.add_column("nodes", sa.Column("resources_at", _WHEN))
    op.create_table(
        "models",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("load", postgresql.JSONB, nullable=False),
        sa.Column("wanted_at", _WHEN),
        sa.Column("last_busy_at", _WHEN),
        sa.Column("last_scaled_at", _WHEN),
        sa.Column("unsatisfiable_until", _WHEN),
        sa.Column("unsatisfiable_ticks", sa.BigInteger, server_default=_ZERO, nullable=False),
        sa.Column("unsatisfiable_why", sa.Text, server_default=_EMPTY, nullable=False),
        sa.Column("created_at", _WHEN, server_default=_NOW, nullable=False),
        sa.Column("updated_at", _WHEN, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_models"),
    )
    op.create_table(
        "model_rules",
        sa.Column("model_name", sa.Text, nullable=False),
        sa.Column("selector", sa.Text, nullable=False),
        sa.Column("min_replicas", sa.BigInteger, nullable=False),
        sa.Column("max_replicas", sa.BigInteger, nullable=False),
        sa.Column("spread_all", sa.Boolean, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("balance_abs_threshold", sa.BigInteger, nullable=False),
        sa.Column("balance_rel_threshold", sa.Double, nullable=False),
        sa.Column("min_prefix_match", sa.Double, nullable=False),
        sa.Column("created_at", _WHEN, server_default=_NOW, nullable=False),
        sa.Column("updated_at", _WHEN, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("model_name", name="pk_model_rules"),
        sa.CheckConstraint("min_replicas >= 0 AND max_replicas >= 0", name=op.f("ck_model_rules_replicas")),
    )
    _create_replicas()
    _create_holds()
    op.create_table(
        "load_failures",
        sa.Column("model_name", sa.Text, nullable=False),
        sa.Column("node_id", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("rest_until", _WHEN, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("model_name", "node_id", name="pk_load_failures"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_load_failures_node_id_nodes", ondelete="CASCADE"),
    )
    op.execute(_SUBTRACT)
    op.execute(_NOTIFY)


def _create_replicas() -> None:
    op.create_table(
        "replicas",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("node_id", sa.Text, nullable=False),
        sa.Column("model_name", sa.Text, nullable=False),
        sa.Column("replica_index", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("address", sa.Text, server_default=_EMPTY, nullable=False),
        sa.Column("op_id", sa.Text, nullable=False),
        sa.Column("reserved", sa.BigInteger, server_default=_ZERO, nullable=False),
        sa.Column("loaded_at", _WHEN),
        sa.Column("node_seq", sa.BigInteger, server_default=_ZERO, nullable=False),
        sa.Column("boot_id", sa.Text, server_default=_EMPTY, nullable=False),
        sa.Column("in_flight", sa.BigInteger, server_default=_ZERO, nullable=False),
        sa.Column("last_used", _WHEN),
        sa.Column("created_at", _WHEN, server_default=_NOW, nullable=False),
        sa.Column("changed_at", _WHEN, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_replicas"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_replicas_node_id_nodes", ondelete="CASCADE"),
        sa.UniqueConstraint(
            "node_id", "model_name", "replica_index", name="uq_replicas_node_id_model_name_replica_index"
        ),
        sa.CheckConstraint(
            "state IN ('draining', 'loaded', 'loading', 'placing', 'unloading')", name=op.f("ck_replicas_state")
        ),
        sa.CheckConstraint("reserved >= 0", name=op.f("ck_replicas_reserved")),
        sa.CheckConstraint("in_flight >= 0", name=op.f("ck_replicas_in_flight")),
        postgresql_with={"fillfactor": "60"},
    )
    op.create_index("ix_replicas_model_name", "replicas", ["model_name"], postgresql_where=sa.text("state = 'loaded'"))
    op.create_index("ix_replicas_op_id", "replicas", ["op_id"])


def _create_holds() -> None:
    op.create_table(
        "replica_holders",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("seen_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_replica_holders"),
    )
    op.create_index("ix_replica_holders_seen_at", "replica_holders", ["seen_at"])
    op.create_table(
        "replica_holds",
        sa.Column("holder_id", sa.Text, nullable=False),
        sa.Column("replica_id", sa.Text, nullable=False),
        sa.Column("in_flight", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("holder_id", "replica_id", name="pk_replica_holds"),
        sa.ForeignKeyConstraint(
            ["holder_id"], ["replica_holders.id"], name="fk_replica_holds_holder_id_replica_holders", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["replica_id"], ["replicas.id"], name="fk_replica_holds_replica_id_replicas", ondelete="CASCADE"
        ),
        sa.CheckConstraint("in_flight >= 0", name=op.f("ck_replica_holds_in_flight")),
    )
    op.create_index("ix_replica_holds_replica_id", "replica_holds", ["replica_id"])


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")
