"""HTTP shapes of the catalogue: which backends can be installed, and where they are."""

from pydantic import Field

from nodesmith.contracts.http.galleries import BackendEntry, CatalogueEntry, InstalledOn, UnusableEntry
from nodesmith.contracts.http.shared import Address, Page


class BackendView(BackendEntry):
    """One backend of the catalogue."""

    id: str
    """gallery@name"""
    family: str = ""
    """the name under which it is locked and stored on a node"""
    alias: str = ""
    """another name for installs"""
    icon: Address = ""
    """address of its icon"""
    license: str = ""
    """its license"""
    urls: list[Address] = Field(default_factory=list)
    """pages about it"""
    mirrors: list[Address] = Field(default_factory=list)
    """further addresses of the same archive"""
    tags: list[str] = Field(default_factory=list)
    """its tags"""
    platforms: list[str] = Field(default_factory=list)
    """operating systems and processors it runs on; empty: not stated"""
    notes: str = ""
    """what the gallery says about using it"""
    is_meta: bool = False
    """it names one build per kind of hardware"""
    is_alias: bool = False
    """it is one of the builds that a meta names"""
    is_development: bool = False
    """it is a development build"""
    capabilities: dict[str, str] = Field(default_factory=dict)
    """of a meta: kind of hardware -> build"""
    meta_backend_for: str = ""
    """the meta that names this build"""
    verification: str = ""
    """how an install is verified: the policy of its gallery"""
    installed: bool = False
    """a node has it"""
    nodes: list[InstalledOn] = Field(default_factory=list)
    """where it is installed"""
    upgradable_on: list[str] = Field(default_factory=list)
    """names of the nodes that have an older or a different build"""
    open_job: str = ""
    """id of the oldest open operation or batch for it; empty if there is none"""

    @classmethod
    def of(cls, entry: CatalogueEntry) -> "BackendView":
        return cls(
            **entry.model_dump(include=BackendView.model_fields.keys() & CatalogueEntry.model_fields.keys()),
            is_meta=entry.isMeta,
            is_alias=entry.isAlias,
            is_development=entry.isDevelopment,
            meta_backend_for=entry.metaBackendFor,
            open_job=entry.jobID,
        )


class BackendPage(Page[BackendView]):
    total: int = Field(default=0, description="backends on all pages")
    tags: list[str] = Field(default_factory=list, description="every tag of the catalogue")
    unusable: list[UnusableEntry] = Field(default_factory=list, description="entries that cannot be installed, and why")
    stale: bool = Field(
        default=False,
        description="the database does not answer: galleries as last known, without information about nodes",
    )
