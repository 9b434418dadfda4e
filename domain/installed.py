"""Installed backends: what an agent reported about one backend on its disk."""

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
