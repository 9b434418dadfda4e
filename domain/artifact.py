"""A backend of the catalogue, resolved."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Artifact:
    """What to fetch, and how to know that it is right."""

    name: str
    version: str
    uri: str
    """absolute, a reference to a registry, or a path below the control plane's own address"""
    sha256: str
    size: int
    description: str = ""
    mirrors: tuple[str, ...] = ()
    """where else the same artifact is, in the order in which they are asked"""
    family: str = ""
    """under which it is locked and kept on a node: its alias or the meta that lists it, else its own name"""
    meta: str = ""
    """the meta that stands for this build and its like on other hardware; empty when none does"""
    gallery: str = ""
    platforms: tuple[str, ...] = ()
    """linux/amd64; empty when the gallery does not say"""
