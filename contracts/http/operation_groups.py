"""HTTP shapes for many operations at once: filters, bulk orders, pending work and the history."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from nodesmith.contracts.http.shared import Shape, example, one_of_ours
from nodesmith.contracts.nats.messages import CancelMode
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import State


class BulkBody(Shape):
    """`POST /api/v1/operations/cancel` and `/dismiss`: at least one condition; `preview` changes nothing."""

    model_config = example(node="gpu-1", state="waiting", preview=True)

    node: str | None = Field(default=None, max_length=255, description="Id or name of the node.")
    backend: str | None = Field(default=None, max_length=255, description="Name of the backend.")
    state: State | None = None
    """in this state"""
    batch: str | None = Field(default=None, max_length=64, description="Id of the batch.")
    preview: bool = False
    """list what matches, and change nothing"""
    reason: str = Field(default="", max_length=500)
    """why, kept in the operations and in the audit trail"""
    mode: Annotated[CancelMode, AfterValidator(one_of_ours)] = CancelMode.DISCARD
    """of a cancel: discard what was downloaded, or keep it for a retry"""

    @model_validator(mode="after")
    def _is_meant(self) -> Self:
        if all(value is None for value in (self.node, self.backend, self.state, self.batch)):
            raise ValueError("Name at least one of: node, backend, state, batch.")
        return self


class BulkItem(Shape):
    """One operation that the filter matched."""

    op_id: str
    """id of the operation"""
    node_name: str
    """name of the node"""
    backend: str
    """name of the backend"""
    kind: Kind
    """install, upgrade, rollback or remove"""
    state: State
    """its state when it was matched"""
    accepted: bool | None = None
    """None in a preview"""
    note: str = ""
    """why it was refused, or a note"""


class BulkResult(Shape):
    preview: bool
    """true: nothing was changed"""
    matched: int
    """operations that the filter matched"""
    accepted: int = 0
    """operations that were cancelled or dismissed"""
    operations: list[BulkItem] = Field(default_factory=list)
    """each of them"""


class PendingWork(Shape):
    """Open operations of one node, or of one backend."""

    name: str
    """name of the node, or of the backend"""
    node_id: str = ""
    """id of the node; empty for a backend"""
    total: int = 0
    """open operations"""
    states: dict[str, int] = Field(default_factory=dict)
    """state -> number of operations"""
    reasons: dict[str, int] = Field(default_factory=dict)
    """reason for waiting -> number of operations"""
    oldest: datetime | None = None
    """when the oldest of them was requested"""
    next_try: datetime | None = None
    """when the first of them stops waiting"""


class PendingView(Shape):
    total: int
    """open operations"""
    nodes: list[PendingWork]
    """per node, most first"""
    backends: list[PendingWork]
    """per backend, most first"""


class HistoryCleared(Shape):
    cleared: int
    """number of operations that the history no longer shows"""
