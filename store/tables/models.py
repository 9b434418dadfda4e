"""The tables of models: what to load, the rule for it, its replicas, and the calls that routers hold open on them."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from nodesmith.domain.replica import ReplicaState
from nodesmith.store.tables.core import Base, one_of


class ModelRow(Base):
    """What to load for a model, with the scheduler's clocks and counters; outlives every replica (R4)."""

    __tablename__ = "models"

    name: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int]
    load: Mapped[dict[str, Any]]
    """`nodesmith.domain.deployment.LoadSpec` without name and revision"""
    wanted_at: Mapped[datetime | None]
    """when a router last had a call for it and no free replica"""
    last_busy_at: Mapped[datetime | None]
    """when the scheduler last saw a call"""
    last_scaled_at: Mapped[datetime | None]
    unsatisfiable_until: Mapped[datetime | None]
    unsatisfiable_ticks: Mapped[int] = mapped_column(server_default=text("0"))
    unsatisfiable_why: Mapped[str] = mapped_column(server_default=text("''"))
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    updated_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class ModelRuleRow(Base):
    """How many replicas of a model run and where. A rule may exist before its model, as LocalAI allows."""

    __tablename__ = "model_rules"
    __table_args__ = (CheckConstraint("min_replicas >= 0 AND max_replicas >= 0", name="replicas"),)

    model_name: Mapped[str] = mapped_column(primary_key=True)
    selector: Mapped[str]
    min_replicas: Mapped[int]
    max_replicas: Mapped[int]
    spread_all: Mapped[bool]
    policy: Mapped[str]
    balance_abs_threshold: Mapped[int]
    balance_rel_threshold: Mapped[float]
    min_prefix_match: Mapped[float]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    updated_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class ReplicaRow(Base):
    """One replica. A row in any state occupies its slot and its memory. Only `in_flight` changes often: HOT updates."""

    __tablename__ = "replicas"
    __table_args__ = (
        CheckConstraint(one_of("state", set(ReplicaState) - {ReplicaState.UNKNOWN}), name="state"),
        CheckConstraint("reserved >= 0", name="reserved"),
        CheckConstraint("in_flight >= 0", name="in_flight"),
        UniqueConstraint("node_id", "model_name", "replica_index"),
        Index("ix_replicas_model_name", "model_name", postgresql_where=text("(state = 'loaded'::text)")),
        Index("ix_replicas_op_id", "op_id"),
        {"postgresql_with": {"fillfactor": "60"}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id", ondelete="CASCADE"))
    model_name: Mapped[str]
    replica_index: Mapped[int]
    revision: Mapped[int]
    state: Mapped[str]
    address: Mapped[str] = mapped_column(server_default=text("''"))
    op_id: Mapped[str]
    reserved: Mapped[int] = mapped_column(server_default=text("0"))
    loaded_at: Mapped[datetime | None]
    node_seq: Mapped[int] = mapped_column(server_default=text("0"))
    boot_id: Mapped[str] = mapped_column(server_default=text("''"))
    in_flight: Mapped[int] = mapped_column(server_default=text("0"))
    last_used: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class ReplicaHolderRow(Base):
    """A router that holds calls open: a gateway, or a caller of the acquire route. Deleted when it is silent."""

    __tablename__ = "replica_holders"

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    seen_at: Mapped[datetime] = mapped_column(index=True)


class ReplicaHoldRow(Base):
    """Open calls of one holder on one replica. A trigger subtracts them from the replica when the row is deleted."""

    __tablename__ = "replica_holds"
    __table_args__ = (CheckConstraint("in_flight >= 0", name="in_flight"),)

    holder_id: Mapped[str] = mapped_column(ForeignKey("replica_holders.id", ondelete="CASCADE"), primary_key=True)
    replica_id: Mapped[str] = mapped_column(ForeignKey("replicas.id", ondelete="CASCADE"), primary_key=True, index=True)
    in_flight: Mapped[int]


class LoadFailureRow(Base):
    """Failed loads of a model on a node: the scheduler does not choose the node again before `rest_until`."""

    __tablename__ = "load_failures"

    model_name: Mapped[str] = mapped_column(primary_key=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True)
    revision: Mapped[int]
    failures: Mapped[int]
    rest_until: Mapped[datetime]
    why: Mapped[str]
