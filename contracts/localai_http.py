"""Shapes that LocalAI's clients send and read, where ours are others."""

from datetime import datetime
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


class GalleryReference(Shape):
    """An entry of LocalAI's list of galleries."""

    name: str
    url: str = ""
    mirrors: list[str] | None = None


class BackendMetadata(Shape):
    """LocalAI's `metadata.json`; what is not known is left out."""

    alias: str | None = None
    meta_backend_for: str | None = None
    name: str | None = None
    gallery_url: str | None = None
    installed_at: datetime | None = None
    version: str | None = None
    uri: str | None = None
    digest: str | None = None


class NodeBackendRef(Shape):
    """One node that has a backend."""

    node_id: str
    node_name: str
    node_status: str
    version: str | None = None
    digest: str | None = None
    uri: str | None = None
    installed_at: datetime | None = None


class InstalledBackend(Shape):
    """An entry of LocalAI's `GET /backends`: one backend of the fleet, as most nodes have it."""

    Name: str
    RunFile: str = ""
    """empty: it lies on the nodes, not here"""
    IsMeta: bool
    IsSystem: bool
    Metadata: BackendMetadata
    upgrade_available: bool | None = None
    available_version: str | None = None
    nodes: list[NodeBackendRef]


class AvailableBackend(Shape):
    """An entry of LocalAI's `GET /backends/available`: a gallery's own words, and whether any node has it."""

    name: str
    alias: str | None = None
    description: str | None = None
    license: str | None = None
    icon: str | None = None
    urls: list[str] | None = None
    tags: list[str] | None = None
    uri: str | None = None
    mirrors: list[str] | None = None
    capabilities: dict[str, str] | None = None
    version: str | None = None
    sha256: str | None = None
    size: int | None = None
    gallery: GalleryReference
    installed: bool


class KnownBackend(Shape):
    """An entry of LocalAI's `GET /backends/known`."""

    name: str
    modality: str
    """what it is for, as the gallery's tags tell it; empty when they do not"""
    auto_detect: bool = False
    """always false: models are not imported here"""
    description: str | None = None
    installed: bool
