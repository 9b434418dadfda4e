"""The tables of access: tokens, invites and the audit trail. Secrets are stored as hashes only."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, SmallInteger, text
from sqlalchemy.orm import Mapped, mapped_column

from nodesmith.domain.access import Role
from nodesmith.domain.audit_change import ChangeState
from nodesmith.store.tables.core import Base, one_of


class TokenRow(Base):
    """A token of a person or program."""

    __tablename__ = "tokens"
    __table_args__ = (
        CheckConstraint(one_of("role", Role), name="role"),
        Index("ix_tokens_live_name", "name", unique=True, postgresql_where=text("revoked_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    role: Mapped[str]
    token_hash: Mapped[str] = mapped_column(unique=True)
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class NatsCredentialRow(Base):
    """A NATS credential of a node. The row outlives the node until the credential expires, so that it stays revoked."""

    __tablename__ = "nats_credentials"
    __table_args__ = (
        Index("ix_nats_credentials_revoked", "expires_at", postgresql_where=text("revoked_at IS NOT NULL")),
    )

    user: Mapped[str] = mapped_column(primary_key=True)
    """the public key"""
    node_id: Mapped[str] = mapped_column(index=True)
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class InviteRow(Base):
    """An invite: admits a number of nodes until it expires."""

    __tablename__ = "invites"
    __table_args__ = (CheckConstraint("used >= 0 AND used <= uses", name="used"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    token_hash: Mapped[str] = mapped_column(unique=True)
    approve: Mapped[bool]
    uses: Mapped[int]
    used: Mapped[int] = mapped_column(server_default=text("0"))
    labels: Mapped[dict[str, Any]]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class InviteUseRow(Base):
    """A node that joined with an invite; a repeated request after a lost reply is not counted twice."""

    __tablename__ = "invite_uses"

    invite_id: Mapped[str] = mapped_column(ForeignKey("invites.id", ondelete="CASCADE"), primary_key=True)
    node_name: Mapped[str] = mapped_column(primary_key=True)
    machine_id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]


class AuditRow(Base):
    """One audited change. No foreign keys: the entry outlives its target."""

    __tablename__ = "audit"
    __table_args__ = (
        CheckConstraint(one_of("outcome", ChangeState), name="outcome"),
        Index("ix_audit_at", "at"),
        Index("ix_audit_actor_id", "actor", "id"),
        Index("ix_audit_target_id", "target", "id"),
        Index("ix_audit_target_id_id", "target_id", "id"),
        Index("ix_audit_action_id", "action", "id"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str]
    action: Mapped[str]
    target: Mapped[str]
    target_id: Mapped[str]
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]
    reason: Mapped[str]
    outcome: Mapped[str]


class TrustRecordRow(Base):
    """The trust lists of this installation, written by the API replica that last replaced keys; one row."""

    __tablename__ = "trust_record"
    __table_args__ = (CheckConstraint("id = 1", name="only_one"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    chain: Mapped[str]
    """as JSON; public keys only"""
    recorded_at: Mapped[datetime]
