"""HTTP shapes of the galleries: catalogue, sources, uploads and upgrades."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from nodesmith.contracts.http.shared import Address, Shape, example
from nodesmith.domain.gallery_trust import GalleryPolicy

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class BackendEntry(Shape):
    """One backend of the catalogue."""

    name: str
    """its name, for installs"""
    version: str
    """its version"""
    description: str = ""
    """what it is, in the gallery's words"""
    uri: Address
    """where the archive or image is"""
    sha256: str = ""
    """digest of the archive; empty for an image without a pinned digest"""
    size: int = 0
    """bytes of the archive; 0: not stated"""
    gallery: str = ""
    """the gallery that lists it"""


class TrustRequest(Shape):
    """`PUT /api/v1/galleries/{name}/trust`: what its artifacts need. Replaces all settings at once."""

    model_config = example(policy="digest")

    policy: GalleryPolicy = GalleryPolicy.DIGEST
    """none: also archives without a sha256; digest; signed: by `keys`, by the metadata below `root`, or both"""
    keys: list[Annotated[str, Field(max_length=4096)]] = Field(default_factory=list, max_length=16)
    """public keys that sign artifacts: minisign keys, or Ed25519 and ECDSA P-256 keys in PEM (cosign)"""
    threshold: int = Field(default=1, ge=1, le=16)
    """how many of these keys must have signed an artifact"""
    root: str = Field(default="", max_length=256_000)
    """TUF root metadata: the index then needs signed metadata in the folder `metadata` beside it"""


class GalleryPlace(Shape):
    """The address of a gallery, with LocalAI's keys."""

    name: str = Field(min_length=1, max_length=64, pattern=_NAME)
    """its name, for `gallery@backend`"""
    url: Address = Field(min_length=1, max_length=2048)
    """file://, http(s)://, or github:owner/repository/path@branch; a .ref file contains the name of a file beside it"""
    mirrors: list[Address] = Field(default_factory=list, max_length=16)
    """further addresses of the same index, tried in this order"""


class GalleryRequest(GalleryPlace, TrustRequest):
    """`POST /api/v1/galleries`: its address, and what its artifacts need."""

    model_config = example(name="mine", url="https://files.example/index.yaml")


class GalleryView(GalleryPlace):
    """A gallery, its trust settings, and the result of its last read."""

    policy: GalleryPolicy = GalleryPolicy.DIGEST
    """what its artifacts need: none, digest or signed"""
    key_ids: list[str] = Field(default_factory=list)
    """the keys whose signature an artifact needs"""
    threshold: int = 1
    """how many of these keys must have signed an artifact"""
    signed_index: bool = False
    """its index is checked against signed TUF metadata"""
    index_version: int = 0
    """version of the signed index in use; older ones are refused"""
    index_expires_at: datetime | None = None
    """when the signed index in use expires; afterwards nothing is installed from it"""
    entries: int = 0
    """backends that can be installed from it"""
    unusable: int = 0
    """entries that cannot"""
    source: Address = ""
    """the address that the copy in use came from"""
    fetched_at: datetime | None = None
    """when the copy in use was last confirmed as the newest"""
    checked_at: datetime | None = None
    """when it was last read, with or without success"""
    error: Address = ""
    """why the last read failed; the copy in use is then older"""
    created_by: str = ""
    """who added it"""
    created_at: datetime | None = None
    """when it was added"""


class UnusableEntry(Shape):
    """An entry of a gallery that cannot be installed."""

    gallery: str
    """the gallery that lists it"""
    name: str
    """its name; empty if it has none"""
    reason: str
    """why it cannot be installed"""
    line: int = 0
    """line in the index; 0: not known"""


class InstalledOn(Shape):
    """One node that has a backend; LocalAI's NodeBackendRef."""

    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    node_status: str = ""
    """status of the node"""
    version: str = ""
    """the version there"""
    digest: str = ""
    """digest of what is installed there"""
    uri: Address = ""
    """where it came from"""
    installed_at: datetime | None = None
    """when it was installed"""


class CatalogueEntry(BackendEntry):
    """One backend of the catalogue: LocalAI's fields, and ours."""

    id: str
    """gallery@name"""
    icon: Address = ""
    license: str = ""
    urls: list[Address] = Field(default_factory=list)
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
    # our fields
    family: str = ""
    alias: str = ""
    mirrors: list[Address] = Field(default_factory=list)
    platforms: list[str] = Field(default_factory=list)
    notes: str = ""
    verification: str = ""
    """how an install is verified: the policy of its gallery"""
    upgradable_on: list[str] = Field(default_factory=list)
    """names of the nodes that have an older or a different build"""


class NodeSuitability(Shape):
    """How a backend fits a node, and which build the node would get."""

    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    node_status: str
    """status of the node"""
    capability: str
    """the hardware of the node, as galleries name it"""
    suitability: str
    """compatible; override: made for other hardware, may start if forced; impossible"""
    build: str = ""
    """the build that the node would get; empty if there is none"""
    reason: str = ""
    """why there is none"""


class GalleryName(Shape):
    name: str
    url: Address = ""


class CataloguePage(Shape):
    """`GET /api/backends`; without `page` and `items`, all of them."""

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
    """empty: suitability is determined per node, not for the API's machine"""
    preferDevelopmentBackends: bool = False  # noqa: N815
    unusable: list[UnusableEntry] = Field(default_factory=list)
    stale: bool = False
    """the database does not answer: galleries as last known, without information about nodes"""


class NodeDrift(Shape):
    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    version: str = ""
    """the version there"""
    digest: str = ""
    """the digest there"""


class UpgradeInfo(Shape):
    """LocalAI's UpgradeInfo: the version most nodes have, the gallery's version, and the nodes that differ."""

    backend_name: str
    """name of the backend"""
    installed_version: str
    """the version that most nodes have"""
    available_version: str
    """the version that the gallery offers"""
    installed_digest: str = ""
    """the digest that most nodes have"""
    available_digest: str = ""
    """the digest that the gallery offers"""
    node_drift: list[NodeDrift] = Field(default_factory=list)
    """nodes that differ from the majority"""
    # our fields
    family: str = ""
    """the name under which it is locked and stored on a node"""
    nodes: list[str] = Field(default_factory=list)
    """names of the nodes that an upgrade would change"""
    checked_at: datetime | None = None
    """when the registry was last asked; None if the gallery itself states the version"""


class UploadView(BackendEntry):
    """An archive that was uploaded into the built-in gallery."""

    tags: list[str] = Field(default_factory=list)
    """its tags in the catalogue"""
    uploaded_by: str = ""
    """who uploaded it"""
    uploaded_at: datetime | None = None
    """when it was uploaded"""
