"""HTTP shapes of the galleries: the catalogue, its sources, what was uploaded, and what can be upgraded."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import Field

from contracts.http import Shape
from contracts.messages import Installed

BUILTIN = "builtin"
"""the gallery that the API serves itself: what comes with Nodesmith, and what was uploaded"""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class BackendEntry(Shape):
    """One backend of the catalogue."""

    name: str
    version: str
    description: str = ""
    uri: str
    sha256: str = ""
    size: int = 0
    gallery: str = ""


class GalleryRequest(Shape):
    """`POST /api/galleries`: LocalAI's keys, and `insecure`."""

    name: str = Field(min_length=1, max_length=64, pattern=_NAME)
    url: str = Field(min_length=1, max_length=2048)
    """file://, http(s)://, or github:owner/repository/path@branch; one that ends in .ref names the file beside it"""
    mirrors: list[str] = Field(default_factory=list, max_length=16)
    insecure: bool = False
    """take archives without a sha256 from it"""


class GalleryView(GalleryRequest):
    """A gallery, and how its last reading went."""

    entries: int = 0
    unusable: int = 0
    source: str = ""
    """which of its addresses the copy in use came from"""
    fetched_at: datetime | None = None
    """when the copy in use was last the newest"""
    checked_at: datetime | None = None
    error: str = ""
    """why the last reading failed; the copy in use is older then"""
    created_by: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True)
class GalleryCopy:
    """A gallery as it was last read, and what reading it again needs; not for the wire."""

    request: GalleryRequest
    content: str
    source: str
    etag: str
    cooling: Mapping[str, float]
    """address that failed -> until when it is left alone (seconds since 1970)"""


@dataclass(frozen=True)
class FreshIndex:
    """What an address gave; without content it is the copy that is there already. Not for the wire."""

    source: str
    etag: str
    content: str | None
    cooling: Mapping[str, float]


@dataclass(frozen=True)
class Installation:
    """A backend on a node; not for the wire."""

    node_id: str
    node_name: str
    node_status: str
    installed: Installed


class UnusableEntry(Shape):
    """An entry of a gallery that nobody can install."""

    gallery: str
    name: str
    reason: str
    line: int = 0


class InstalledOn(Shape):
    """One node that has a backend; LocalAI's NodeBackendRef."""

    node_id: str
    node_name: str
    node_status: str = ""
    version: str = ""
    digest: str = ""
    uri: str = ""
    installed_at: datetime | None = None


class CatalogueEntry(BackendEntry):
    """One backend of the catalogue: LocalAI's fields, ours beside them."""

    id: str
    """gallery@name"""
    icon: str = ""
    license: str = ""
    urls: list[str] = Field(default_factory=list)
    tags: list[str] = Field(default_factory=list)
    installed: bool = False
    processing: bool = False
    jobID: str = ""  # noqa: N815 - LocalAI's name
    isDeletion: bool = False  # noqa: N815
    isMeta: bool = False  # noqa: N815
    isAlias: bool = False  # noqa: N815
    isDevelopment: bool = False  # noqa: N815
    capabilities: dict[str, str] = Field(default_factory=dict)
    metaBackendFor: str = ""  # noqa: N815
    nodes: list[InstalledOn] = Field(default_factory=list)
    # ours
    family: str = ""
    alias: str = ""
    mirrors: list[str] = Field(default_factory=list)
    platforms: list[str] = Field(default_factory=list)
    notes: str = ""
    upgradable_on: list[str] = Field(default_factory=list)
    """names of the nodes that have an older or another build of it"""


class NodeSuitability(Shape):
    """How a backend fits a node, and which build the node would get."""

    node_id: str
    node_name: str
    node_status: str
    capability: str
    suitability: str
    """compatible; override: made for other hardware, may start if somebody insists; impossible"""
    build: str = ""
    reason: str = ""


class GalleryName(Shape):
    name: str
    url: str = ""


class CataloguePage(Shape):
    """`GET /api/backends`: without `page` and `items`, everything."""

    backends: list[CatalogueEntry]
    repositories: list[GalleryName]
    allTags: list[str]  # noqa: N815
    processingBackends: dict[str, str] = Field(default_factory=dict)  # noqa: N815
    taskTypes: dict[str, str] = Field(default_factory=dict)  # noqa: N815
    availableBackends: int  # noqa: N815
    installedBackends: int  # noqa: N815
    currentPage: int = 1  # noqa: N815
    totalPages: int = 1  # noqa: N815
    prevPage: int = 1  # noqa: N815
    nextPage: int = 1  # noqa: N815
    systemCapability: str = ""  # noqa: N815
    """empty: what fits is asked of each node, not of the machine that answers"""
    preferDevelopmentBackends: bool = False  # noqa: N815
    unusable: list[UnusableEntry] = Field(default_factory=list)
    stale: bool = False
    """the database does not answer: galleries as they were known last, and nothing of the nodes"""


class NodeDrift(Shape):
    node_id: str
    node_name: str
    version: str = ""
    digest: str = ""


class UpgradeInfo(Shape):
    """LocalAI's UpgradeInfo: what most nodes have, what the gallery has, and who differs from most."""

    backend_name: str
    installed_version: str
    available_version: str
    installed_digest: str = ""
    available_digest: str = ""
    node_drift: list[NodeDrift] = Field(default_factory=list)
    # ours
    family: str = ""
    nodes: list[str] = Field(default_factory=list)
    """names of the nodes that an upgrade would change"""
    checked_at: datetime | None = None
    """when the registry was last asked; none for a version that the gallery itself tells"""


class UploadView(BackendEntry):
    """An archive that was uploaded into the built-in gallery."""

    tags: list[str] = Field(default_factory=list)
    uploaded_by: str = ""
    uploaded_at: datetime | None = None
