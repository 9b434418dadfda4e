"""A backend of the catalogue, resolved."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Artifact:
    """What to fetch, and how to know that it is right."""

    name: str
    version: str
    uri: str
    """absolute, or a path below the control plane's own address"""
    sha256: str
    size: int
    description: str = ""
