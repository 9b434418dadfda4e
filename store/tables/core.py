"""The main tables. A node's status and an operation's `stalled` are derived on read and have no column."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    SmallInteger,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from nodesmith.domain.operation import OPEN, State

UNSUCCESSFUL = (State.FAILED, State.EXPIRED, State.DEAD_LETTER)
"""ended, and on the live list until it is dismissed"""
NODE_BOUND = (State.WAITING, State.CANCELLING)
"""states that may continue when the node returns"""


def one_of(column: str, words: Iterable[str]) -> str:
    """SQL condition: `column` has one of these values."""
    listed = ", ".join(f"'{word}'" for word in sorted(words))
    return f"{column} IN ({listed})"


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text,
        int: BigInteger,
        float: Double,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
    }


class NodeRow(Base):
    """A node: the facts that it reported and the decisions of an admin."""

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    node_type: Mapped[str]
    protocol: Mapped[int] = mapped_column(SmallInteger)
    address: Mapped[str]
    http_address: Mapped[str]
    max_replicas_per_model: Mapped[int]
    vram_budget: Mapped[str]
    machine_id: Mapped[str]
    boot_id: Mapped[str]
    boot_at: Mapped[datetime | None]
    """when the current process of the node first registered"""
    agent_version: Mapped[str]
    credential_hash: Mapped[str | None] = mapped_column(index=True)
    nats_key: Mapped[str] = mapped_column(server_default=text("''"))
    """the public key that verifies its reports; empty for a LocalAI worker"""
    beat_seq: Mapped[int] = mapped_column(server_default=text("0"))
    """number of the last heartbeat of this boot"""
    beat_at: Mapped[datetime | None]
    """time of the last heartbeat, by the node's clock"""
    trust_version: Mapped[int] = mapped_column(server_default=text("0"))
    """of the trust list, as reported in its last heartbeat; 0: not reported"""
    resources: Mapped[dict[str, Any]]
    resources_at: Mapped[datetime | None]
    """when the node last reported them, by the database clock"""
    max_replicas_override: Mapped[int | None]
    """set by an admin; NULL: the reported value applies"""
    vram_budget_override: Mapped[str | None]
    approved_at: Mapped[datetime | None]
    drained_at: Mapped[datetime | None]
    leaving_at: Mapped[datetime | None]
    left_at: Mapped[datetime | None]
    last_heartbeat: Mapped[datetime | None]
    unreachable_since: Mapped[datetime | None]
    rival_seen_at: Mapped[datetime | None]
    """when a second process last claimed to be this node"""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class RetiredCredentialRow(Base):
    """A retired credential: a process that still presents it gets the reason and is not admitted again."""

    __tablename__ = "retired_credentials"

    credential_hash: Mapped[str] = mapped_column(primary_key=True)
    node_id: Mapped[str] = mapped_column(index=True)
    node_name: Mapped[str]
    why: Mapped[str]
    retired_at: Mapped[datetime]


class HeartbeatSinkRow(Base):
    """Since when the control plane receives heartbeats of one protocol; earlier silence is not counted."""

    __tablename__ = "heartbeat_sinks"

    protocol: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    listening_since: Mapped[datetime]
    last_listened: Mapped[datetime]


class MonitorTickRow(Base):
    """When a monitor last completed a tick, and which of its runs did so."""

    __tablename__ = "monitor_ticks"

    monitor: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str]
    ticked_at: Mapped[datetime]


class OperationRow(Base):
    """The projection of one operation. No foreign key to nodes: history outlives a node."""

    __tablename__ = "operations"
    __table_args__ = (
        CheckConstraint(one_of("state", set(State) - {State.UNKNOWN}), name="state"),
        Index("ix_operations_open", "node_id", postgresql_where=text(one_of("state", OPEN))),
        Index("ix_operations_node_bound", "node_id", postgresql_where=text(one_of("state", NODE_BOUND))),
        Index(
            "ix_operations_unsuccessful",
            "created_at",
            postgresql_where=text(f"{one_of('state', UNSUCCESSFUL)} AND dismissed_at IS NULL"),
        ),
        Index("ix_operations_created_at", "created_at"),
        Index("ix_operations_node_id_created_at", "node_id", "created_at"),
        Index("ix_operations_node_id_ended_at", "node_id", "ended_at"),
        Index("ix_operations_batch_id", "batch_id", postgresql_where=text("batch_id IS NOT NULL")),
        Index("ix_operations_ended_at", "ended_at", "op_id", postgresql_where=text("ended_at IS NOT NULL")),
    )

    op_id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    node_id: Mapped[str]
    node_name: Mapped[str]
    backend: Mapped[str]
    family: Mapped[str]
    batch_id: Mapped[str | None]
    request: Mapped[dict[str, Any]]
    """`nodesmith.contracts.temporal.operations.OperationRequest`, complete: retry and detail need no Temporal"""
    workflow_id: Mapped[str]
    run_id: Mapped[str]

    at: Mapped[datetime]
    seq: Mapped[int]
    state: Mapped[str]
    reason: Mapped[str | None]
    detail: Mapped[str]
    until: Mapped[datetime | None]
    attempt: Mapped[int]
    sent: Mapped[int] = mapped_column(server_default=text("0"))
    """the newest decision that may have reached the node; 0: nothing was ever sent. Only permits write it"""
    sent_by: Mapped[str] = mapped_column(server_default=text("''"))
    """the token of the permit that set `sent`: only its owner withdraws it"""
    cancelled_by: Mapped[str]
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]
    changed: Mapped[bool | None]
    signed_outcome: Mapped[str | None]
    """the envelope that the node signed, with its key, for later verification"""
    bytes_fetched: Mapped[int]
    bytes_reused: Mapped[int]
    created_at: Mapped[datetime]
    dispatched_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    dismissed_at: Mapped[datetime | None]
    cleared_at: Mapped[datetime | None]
    """when the history was cleared: no longer listed there, but kept for batches and audit"""

    phase: Mapped[str | None]
    bytes_done: Mapped[int] = mapped_column(server_default=text("0"))
    bytes_total: Mapped[int] = mapped_column(server_default=text("0"))
    percentage: Mapped[float] = mapped_column(server_default=text("0"))
    rate: Mapped[float] = mapped_column(server_default=text("0"))
    eta_s: Mapped[float | None]
    progressed_at: Mapped[datetime | None]
    """when the gauge last changed"""


class OrderRow(Base):
    """The signed order of an operation. No foreign key: members of a batch have orders before they have rows."""

    __tablename__ = "orders"
    __table_args__ = (Index("uq_orders_node_id_family_iat", "node_id", "family", "iat", unique=True),)

    op_id: Mapped[str] = mapped_column(primary_key=True)
    node_id: Mapped[str]
    family: Mapped[str]
    iat: Mapped[int]
    """issue time in milliseconds since 1970; increases with each order for this node and family"""
    exp: Mapped[int] = mapped_column(index=True)
    kid: Mapped[str]
    payload: Mapped[str]
    """the exact signed bytes"""
    signature: Mapped[str]


class OperationEventRow(Base):
    """One change of state; its id is the SSE id, and ids follow the order of commits."""

    __tablename__ = "operation_events"
    __table_args__ = (
        # a workflow task that is executed again repeats an event, or writes another result with the same number
        Index(
            "uq_operation_events_told",
            "op_id",
            "run_id",
            "seq",
            "state",
            text("coalesce(reason, '')"),
            unique=True,
        ),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    op_id: Mapped[str] = mapped_column(ForeignKey("operations.op_id", ondelete="CASCADE"))
    node_id: Mapped[str]
    node_name: Mapped[str]
    backend: Mapped[str]
    kind: Mapped[str]
    batch_id: Mapped[str | None]
    run_id: Mapped[str]
    at: Mapped[datetime]
    seq: Mapped[int]
    state: Mapped[str]
    reason: Mapped[str | None]
    detail: Mapped[str]
    until: Mapped[datetime | None]
    attempt: Mapped[int]


class IdempotencyKeyRow(Base):
    """The request behind an `Idempotency-Key` of a caller, and the job that it started."""

    __tablename__ = "idempotency_keys"

    actor: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    """digest of route, resolved target and complete body"""
    op_id: Mapped[str]
    """reserved before the start; the id of the job unless it joined another"""
    job_id: Mapped[str | None]
    """the job that was started; NULL until the start was recorded"""
    status: Mapped[int | None] = mapped_column(SmallInteger)
    """HTTP status of the answer to a request that starts no job; NULL until answered"""
    answer: Mapped[Any | None] = mapped_column(JSONB)
    """the body of that answer, without secrets"""
    location: Mapped[str | None]
    """its header `Location`"""
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"), index=True)


class SignInCodeRow(Base):
    """A sign-in link that was not used yet."""

    __tablename__ = "sign_in_codes"

    code_hash: Mapped[str] = mapped_column(primary_key=True)
    actor: Mapped[str]
    role: Mapped[str]
    token_id: Mapped[str]
    expires_at: Mapped[datetime]


class SessionRow(Base):
    """The session of a signed-in browser."""

    __tablename__ = "sessions"

    token_hash: Mapped[str] = mapped_column(primary_key=True)
    actor: Mapped[str]
    role: Mapped[str]
    token_id: Mapped[str]
    expires_at: Mapped[datetime]


class BatchRow(Base):
    """One intent for many nodes; the state of each member is in its operation."""

    __tablename__ = "batches"

    batch_id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    backend: Mapped[str]
    family: Mapped[str]
    request: Mapped[dict[str, Any]]
    """the complete request without its nodes"""
    state: Mapped[str]
    detail: Mapped[str]
    requested_by: Mapped[str]
    at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(index=True)
    ended_at: Mapped[datetime | None]
    begins_nothing: Mapped[bool] = mapped_column(server_default=text("false"))
    """stopped after too many failures: a waiting member does not start when its node returns"""


class BatchMemberRow(Base):
    """One node of a batch, fixed at the start; no foreign key to nodes: history outlives a node."""

    __tablename__ = "batch_members"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.batch_id", ondelete="CASCADE"), primary_key=True)
    node_id: Mapped[str] = mapped_column(primary_key=True)
    node_name: Mapped[str]
    op_id: Mapped[str | None] = mapped_column(index=True)
    joined: Mapped[bool]
    verdict: Mapped[str | None]
    detail: Mapped[str]


_IN_FORCE = text("(released_at IS NULL)")


class HoldRow(Base):
    """A hold, which stops all undispatched operations; at most one is in force."""

    __tablename__ = "holds"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    reason: Mapped[str]
    held_by: Mapped[str]
    held_at: Mapped[datetime]
    released_by: Mapped[str | None]
    released_at: Mapped[datetime | None]

    __table_args__ = (Index("uq_holds_in_force", _IN_FORCE, unique=True, postgresql_where=_IN_FORCE),)
