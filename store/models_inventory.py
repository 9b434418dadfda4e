"""Tables of what a node is called by its labels, and of what it has installed."""

from datetime import datetime

from sqlalchemy import CheckConstraint, Computed, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from store.models import Base


class NodeLabelRow(Base):
    """One label of a node. Three may have a say, each in a column of its own, so that none wipes out another's."""

    __tablename__ = "node_labels"
    __table_args__ = (
        CheckConstraint("length(key) >= 1 AND length(key) <= 128", name="key"),
        CheckConstraint("length(value) <= 255", name="value"),
        Index("ix_node_labels_key_value_node_id", "key", "value", "node_id"),
    )

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    automatic: Mapped[str | None]
    """follows from the facts"""
    by_admin: Mapped[str | None]
    by_node: Mapped[str | None]
    value: Mapped[str] = mapped_column(Computed("COALESCE(automatic, by_admin, by_node)", persisted=True))
    """what counts; a label of which nobody says anything any more cannot stay"""


class InstalledRow(Base):
    """One backend on a node's disk, as the node itself said."""

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
    """When a node was last asked for its list, and in which of its boots it answered."""

    __tablename__ = "inventory_scans"

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True)
    asked_at: Mapped[datetime]
    boot_id: Mapped[str]
