"""The tables of labels and of installed backends."""

from datetime import datetime

from sqlalchemy import CheckConstraint, Computed, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from nodesmith.store.tables.core import Base


class NodeLabelRow(Base):
    """One label of a node. Each of its three sources has its own column, so that none overwrites another."""

    __tablename__ = "node_labels"
    __table_args__ = (
        CheckConstraint("length(key) >= 1 AND length(key) <= 128", name="key"),
        CheckConstraint("length(value) <= 255", name="value"),
        Index("ix_node_labels_key_value_node_id", "key", "value", "node_id"),
    )

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    automatic: Mapped[str | None]
    """derived from the facts"""
    by_admin: Mapped[str | None]
    by_node: Mapped[str | None]
    value: Mapped[str] = mapped_column(Computed("COALESCE(automatic, by_admin, by_node)", persisted=True))
    """the effective value; NOT NULL, so that a label without any source cannot exist"""


class InstalledRow(Base):
    """One backend on a node's disk, as reported by the node."""

    __tablename__ = "installed_backends"
    __table_args__ = (Index("ix_installed_backends_family_node_id", "family", "node_id"),)

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True)
    family: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[str]
    digest: Mapped[str]
    uri: Mapped[str]
    gallery_url: Mapped[str]
    is_system: Mapped[bool]
    is_meta: Mapped[bool]
    installed_at: Mapped[datetime | None]
    previous_version: Mapped[str]
    previous_digest: Mapped[str]
    seen_at: Mapped[datetime]


class InventoryScanRow(Base):
    """When a node was last asked for its list, and the boot that answered."""

    __tablename__ = "inventory_scans"

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True)
    asked_at: Mapped[datetime]
    boot_id: Mapped[str]
    doubted_at: Mapped[datetime | None]
    """when the node changed its disk for an operation that had already ended here"""
