"""Operations over HTTP beyond one at a time: history, pending work, and orders by filter."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field, model_validator

from contracts.http import Shape
from contracts.messages import CancelMode
from domain.operation import Kind, State


class OperationFilter(Shape):
    """Which operations; what is left out restricts nothing."""

    node: str | None = Field(default=None, max_length=255, description="Id or name of the node.")
    backend: str | None = Field(default=None, max_length=255, description="Name of the backend.")
    state: State | None = None
    batch: str | None = Field(default=None, max_length=64, description="Id of the batch.")

    @property
    def is_empty(self) -> bool:
        return all(value is None for value in (self.node, self.backend, self.state, self.batch))


class BulkBody(OperationFilter):
    """`POST /api/operations/cancel` and `/dismiss`: at least one condition; `preview` changes nothing."""

    preview: bool = False
    reason: str = Field(default="", max_length=500)
    mode: CancelMode = CancelMode.DISCARD

    @model_validator(mode="after")
    def _is_meant(self) -> Self:
        if self.is_empty:
            raise ValueError("Say which operations: node, backend, state or batch.")
        return self


class BulkItem(Shape):
    """One operation that the filter matched."""

    op_id: str
    node_name: str
    backend: str
    kind: Kind
    state: State
    accepted: bool | None = None
    """None in a preview"""
    note: str = ""
    """why it was not accepted, or what to know"""


class BulkResult(Shape):
    preview: bool
    matched: int
    accepted: int = 0
    operations: list[BulkItem] = Field(default_factory=list)


class HistoryPage(Shape):
    operations: list[dict[str, Any]]
    """LocalAI's entry (id, name, jobID, outcome, startedAt, finishedAt ...) and ours in one object"""
    next: str | None = None
    """cursor of the next page"""


class PendingWork(Shape):
    """Open operations of one node, or of one backend."""

    name: str
    node_id: str = ""
    total: int = 0
    states: dict[str, int] = Field(default_factory=dict)
    reasons: dict[str, int] = Field(default_factory=dict)
    """why they wait -> how many"""
    oldest: datetime | None = None
    next_try: datetime | None = None
    """until when the first of them waits"""


class PendingView(Shape):
    total: int
    nodes: list[PendingWork]
    backends: list[PendingWork]


class OpStatus(Shape):
    """LocalAI's `GET /backends/jobs/{uuid}`."""

    deletion: bool = False
    file_name: str = ""
    error: str | None = None
    processed: bool = False
    message: str = ""
    progress: float = 0.0
    phase: str | None = None
    current_bytes: int | None = None
    total_bytes: int | None = None
    file_size: str = ""
    downloaded_size: str = ""
    gallery_element_name: str = ""
    cancelled: bool = False
    cancellable: bool = False
    nodes: list[dict[str, Any]] | None = None


class DeleteBody(Shape):
    """LocalAI's `POST /api/nodes/{id}/backends/delete`."""

    backend: str = Field(min_length=1, max_length=255)


class StopBody(Shape):
    """`POST /api/nodes/{id}/backends/stop`: one backend, one model, or everything when nothing is named."""

    backend: str = Field(default="", max_length=255)
    force: bool = False
    reason: str = Field(default="", max_length=500)


class Done(Shape):
    success: bool
    message: str = ""
