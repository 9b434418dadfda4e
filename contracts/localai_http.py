"""Shapes that LocalAI's clients send and read, where ours are others."""

from typing import Any

from pydantic import Field

from contracts.http import Shape


class JobStatus(Shape):
    """LocalAI's `GET /api/backends/job/{id}`: always 200, `queued` for an id nobody knows."""

    progress: float = 0
    message: str = "Operation queued"
    galleryElementName: str = ""  # noqa: N815
    processed: bool = False
    deletion: bool = False
    queued: bool = True
    error: str | None = None
    completed: bool | None = None


class LocalaiJob(Shape):
    """LocalAI's answer to a route that concerns every node."""

    jobID: str  # noqa: N815
    uuid: str
    statusUrl: str  # noqa: N815
    message: str


class JobReference(Shape):
    """The same, on the routes without `/api`; `uuid` is what LocalAI's own clients look for."""

    id: str
    uuid: str
    status_url: str


class ApplyRequest(Shape):
    id: str = Field(min_length=1, max_length=255)
    force: bool = False


class ExternalRequest(Shape):
    uri: str = Field(min_length=1, max_length=2048)
    name: str = Field(default="", max_length=255)
    alias: str = Field(default="", max_length=255)


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
