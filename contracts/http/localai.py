"""HTTP shapes of LocalAI's clients, where they differ from ours."""

from datetime import datetime

from pydantic import Field

from nodesmith.contracts.http.shared import Address, Shape
from nodesmith.contracts.names import PlainName


class JobStatus(Shape):
    """LocalAI's `GET /api/backends/job/{id}`: always 200, `queued` for an unknown id."""

    progress: float = 0
    message: str = "Operation queued"
    galleryElementName: str = ""  # noqa: N815
    processed: bool = False
    deletion: bool = False
    queued: bool = True
    error: str | None = None
    completed: bool | None = None


class NodeJob(Shape):
    """LocalAI's response of a route for one node."""

    jobID: str  # noqa: N815
    statusUrl: str  # noqa: N815
    message: str


class FleetJob(NodeJob):
    """LocalAI's response of a route for all nodes."""

    uuid: str


class JobReference(Shape):
    """The same, on the routes without `/api`; LocalAI's own clients read `uuid`."""

    id: str
    uuid: str
    status_url: str


class ApplyRequest(Shape):
    id: PlainName = Field(min_length=1, max_length=255)
    force: bool = False


class ExternalRequest(Shape):
    uri: PlainName = Field(min_length=1, max_length=2048)
    name: PlainName = Field(default="", max_length=255)
    alias: PlainName = Field(default="", max_length=255)


class NodeProgress(Shape):
    """One node of an operation; unset fields are omitted."""

    node_id: str
    node_name: str
    status: str
    """queued, downloading, running_on_worker, success or error"""
    percentage: float
    phase: str | None = None
    error: str | None = None


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
    nodes: list[NodeProgress] | None = None


class DeleteBody(Shape):
    """LocalAI's `POST /api/nodes/{id}/backends/delete`."""

    backend: PlainName = Field(min_length=1, max_length=255)


class GalleryReference(Shape):
    """An entry of LocalAI's list of galleries."""

    name: str
    url: Address = ""
    mirrors: list[Address] | None = None


class BackendMetadata(Shape):
    """LocalAI's `metadata.json`; unknown fields are omitted."""

    alias: str | None = None
    meta_backend_for: str | None = None
    name: str | None = None
    gallery_url: Address | None = None
    installed_at: datetime | None = None
    version: str | None = None
    uri: Address | None = None
    digest: str | None = None


class NodeBackendRef(Shape):
    """One node that has a backend."""

    node_id: str
    node_name: str
    node_status: str
    version: str | None = None
    digest: str | None = None
    uri: Address | None = None
    installed_at: datetime | None = None


class InstalledBackend(Shape):
    """An entry of LocalAI's `GET /backends`: one backend of the fleet, in the version most nodes have."""

    Name: str
    RunFile: str = ""
    """empty: the files are on the nodes, not here"""
    IsMeta: bool
    IsSystem: bool
    Metadata: BackendMetadata
    upgrade_available: bool | None = None
    available_version: str | None = None
    nodes: list[NodeBackendRef]


class AvailableBackend(Shape):
    """An entry of LocalAI's `GET /backends/available`: the gallery's text, and whether any node has it."""

    name: str
    alias: str | None = None
    description: str | None = None
    license: str | None = None
    icon: str | None = None
    urls: list[Address] | None = None
    tags: list[str] | None = None
    uri: Address | None = None
    mirrors: list[Address] | None = None
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
    """its uses, from the gallery's tags; empty if there are none"""
    auto_detect: bool = False
    """always false: the API does not import models"""
    description: str | None = None
    installed: bool


class LocalaiOperation(Shape):
    """An entry of LocalAI's live list; unset fields are omitted."""

    id: str
    """name of the backend; the same on several nodes"""
    name: str
    fullName: str  # noqa: N815
    jobID: str  # noqa: N815
    progress: int
    """in percent"""
    taskType: str  # noqa: N815
    """Installation, Waiting or deletion"""
    isDeletion: bool  # noqa: N815
    isBackend: bool = True  # noqa: N815
    isQueued: bool  # noqa: N815
    cancellable: bool
    message: str
    nodeID: str  # noqa: N815
    phase: str | None = None
    currentBytes: int | None = None  # noqa: N815
    totalBytes: int | None = None  # noqa: N815
    error: str | None = None
    nodes: list[NodeProgress]


class LocalaiOperations(Shape):
    """LocalAI's `GET /api/operations`."""

    operations: list[LocalaiOperation]


class LocalaiHistoryEntry(Shape):
    """An entry of LocalAI's history; `error` only of a failure."""

    id: str
    name: str
    jobID: str  # noqa: N815
    isBackend: bool = True  # noqa: N815
    nodeID: str  # noqa: N815
    taskType: str  # noqa: N815
    """installation or deletion"""
    outcome: str
    """completed, failed or cancelled"""
    error: str | None = None
    startedAt: datetime  # noqa: N815
    finishedAt: datetime | None  # noqa: N815


class LocalaiHistory(Shape):
    """LocalAI's `GET /api/operations/history`."""

    operations: list[LocalaiHistoryEntry]
