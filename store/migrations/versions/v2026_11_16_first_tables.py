"""First tables: nodes, operations and their events, idempotency keys, sign-in."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_16_first_tables"
down_revision = None

_WHEN = sa.DateTime(timezone=True)
_REAL: sa.Double[float] = sa.Double()
_JSON = postgresql.JSONB()


def upgrade() -> None:
    _nodes()
    _operations()
    _operation_indexes()
    _operation_events()
    _idempotency_keys()
    _sign_in()


def downgrade() -> None:
    raise NotImplementedError("Restore a backup instead: going back would drop the history.")


def _nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("node_type", sa.Text(), nullable=False),
        sa.Column("protocol", sa.SmallInteger(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("http_address", sa.Text(), nullable=False),
        sa.Column("max_replicas_per_model", sa.BigInteger(), nullable=False),
        sa.Column("vram_budget", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("agent_version", sa.Text(), nullable=False),
        sa.Column("credential_hash", sa.Text()),
        sa.Column("resources", _JSON, nullable=False),
        sa.Column("labels", _JSON, nullable=False),
        sa.Column("approved_at", _WHEN),
        sa.Column("drained_at", _WHEN),
        sa.Column("leaving_at", _WHEN),
        sa.Column("left_at", _WHEN),
        sa.Column("last_heartbeat", _WHEN),
        sa.Column("unreachable_since", _WHEN),
        sa.Column("created_at", _WHEN, nullable=False),
        sa.Column("updated_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
        sa.UniqueConstraint("name", name="uq_nodes_name"),
    )
    op.create_index("ix_nodes_credential_hash", "nodes", ["credential_hash"])
    op.create_table(
        "heartbeat_sinks",
        sa.Column("protocol", sa.SmallInteger(), nullable=False, autoincrement=False),
        sa.Column("listening_since", _WHEN, nullable=False),
        sa.Column("last_listened", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("protocol", name="pk_heartbeat_sinks"),
    )


def _operations() -> None:
    op.create_table(
        "operations",
        sa.Column("op_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("node_name", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text()),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("at", _WHEN, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("until", _WHEN),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("cancelled_by", sa.Text(), nullable=False),
        sa.Column("before", _JSON),
        sa.Column("after", _JSON),
        sa.Column("changed", sa.Boolean()),
        sa.Column("bytes_fetched", sa.BigInteger(), nullable=False),
        sa.Column("bytes_reused", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _WHEN, nullable=False),
        sa.Column("dispatched_at", _WHEN),
        sa.Column("ended_at", _WHEN),
        sa.Column("dismissed_at", _WHEN),
        sa.Column("phase", sa.Text()),
        sa.Column("bytes_done", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("bytes_total", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("percentage", _REAL, nullable=False, server_default=sa.text("0")),
        sa.Column("rate", _REAL, nullable=False, server_default=sa.text("0")),
        sa.Column("eta_s", _REAL),
        sa.Column("progressed_at", _WHEN),
        sa.PrimaryKeyConstraint("op_id", name="pk_operations"),
        sa.CheckConstraint(
            "state IN ('cancelled', 'cancelling', 'dead_letter', 'expired', 'failed', 'queued', 'running',"
            " 'still_installing', 'succeeded', 'waiting')",
            name=op.f("ck_operations_state"),
        ),
    )


def _operation_indexes() -> None:
    op.create_index(
        "ix_operations_open",
        "operations",
        ["node_id"],
        postgresql_where=sa.text("state IN ('cancelling', 'queued', 'running', 'still_installing', 'waiting')"),
    )
    op.create_index(
        "ix_operations_node_bound",
        "operations",
        ["node_id"],
        postgresql_where=sa.text("state IN ('cancelling', 'waiting')"),
    )
    op.create_index(
        "ix_operations_unsuccessful",
        "operations",
        ["created_at"],
        postgresql_where=sa.text("state IN ('dead_letter', 'expired', 'failed') AND dismissed_at IS NULL"),
    )
    op.create_index("ix_operations_created_at", "operations", ["created_at"])
    op.create_index("ix_operations_node_id_created_at", "operations", ["node_id", "created_at"])
    op.create_index(
        "ix_operations_batch_id", "operations", ["batch_id"], postgresql_where=sa.text("batch_id IS NOT NULL")
    )


def _operation_events() -> None:
    op.create_table(
        "operation_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("op_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("node_name", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text()),
        sa.Column("at", _WHEN, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("until", _WHEN),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_operation_events"),
        sa.UniqueConstraint("op_id", "at", "seq", name="uq_operation_events_op_id_at_seq"),
        sa.ForeignKeyConstraint(
            ["op_id"], ["operations.op_id"], name="fk_operation_events_op_id_operations", ondelete="CASCADE"
        ),
    )


def _idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("intent", sa.Text(), nullable=False),
        sa.Column("op_id", sa.Text(), nullable=False),
        sa.Column("created_at", _WHEN, nullable=False, server_default=sa.text("now()")),
        sa.PrimaryKeyConstraint("actor", "key", name="pk_idempotency_keys"),
    )


def _sign_in() -> None:
    op.create_table(
        "sign_in_codes",
        sa.Column("code_hash", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("expires_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("code_hash", name="pk_sign_in_codes"),
    )
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("expires_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_sessions"),
    )
