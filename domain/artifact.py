"""The artifact that a backend of the catalogue resolves to."""

from dataclasses import dataclass

RESERVED = frozenset({"metadata.json", ".metadata.json", ".metadata.json.draft"})
"""file names that the agent writes itself at the top of an installed version; no archive may contain them"""


@dataclass(frozen=True)
class Artifact:
    """What to download, and the digest to verify it with."""

    name: str
    version: str
    uri: str
    """absolute, a reference to a registry, or a path below the control plane's own address"""
    sha256: str
    size: int
    description: str = ""
    mirrors: tuple[str, ...] = ()
    """other addresses of the same artifact, in the order in which they are tried"""
    family: str = ""
    """key of its lock and its folder on a node: its alias or the meta that lists it, else its own name"""
    meta: str = ""
    """the meta backend that groups this build with those for other hardware; empty without one"""
    gallery: str = ""
    platforms: tuple[str, ...] = ()
    """linux/amd64; empty when the gallery does not say"""
