"""Installed backends: what an agent reported about one backend on its disk, and on which node it is."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledBackend:
    name: str = ""
    is_system: bool = False
    is_meta: bool = False
    installed_at: datetime | None = None
    gallery_url: str = ""
    version: str = ""
    uri: str = ""
    digest: str = ""
    family: str = ""
    previous_version: str = ""
    previous_digest: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """A backend on a node."""

    node_id: str
    node_name: str
    node_status: str
    installed: InstalledBackend
