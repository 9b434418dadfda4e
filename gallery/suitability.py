"""Whether a build fits a node, derived from the words in its name and uri, as LocalAI's galleries use them."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from nodesmith.domain.artifact import Artifact
from nodesmith.domain.wire_enum import WireEnum

_DARWIN = frozenset({"metal", "darwin-x86"})


class Suitability(WireEnum):
    COMPATIBLE = "compatible"
    OVERRIDE = "override"
    """made for other hardware; it may start anyway if it is forced"""
    IMPOSSIBLE = "impossible"
    """made for another system or processor"""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class _Kind:
    """A kind of hardware: the words that identify it, and the capabilities that it serves."""

    name: str
    words: tuple[str, ...]
    serves: Callable[[str], bool]


_KINDS = (
    _Kind("Apple", ("darwin", "mlx", "metal"), lambda capability: capability in _DARWIN),
    _Kind("Jetson", ("l4t",), lambda capability: capability.startswith("nvidia-l4t")),
    _Kind("NVIDIA", ("cuda", "nvidia"), lambda capability: capability.startswith("nvidia")),
    _Kind("AMD", ("rocm", "hip", "amd"), lambda capability: capability == "amd"),
    _Kind("Intel", ("sycl", "intel"), lambda capability: capability == "intel"),
)
"""in the order of matching; a build of no kind runs everywhere"""

_PREFERRED = {
    "nvidia": ("cuda", "vulkan", "cpu"),
    "amd": ("rocm", "hip", "vulkan", "cpu"),
    "intel": ("sycl", "intel", "cpu"),
    "metal": ("metal", "cpu"),
    "vulkan": ("vulkan", "cpu"),
}


def is_for_some_hardware(artifact: Artifact) -> bool:
    return _kind(artifact) is not None


def suitability(artifact: Artifact, capability: str, platform: str = "") -> Suitability:
    """Return how a build fits a node of this capability; `platform` (linux/amd64) is used if both sides state one."""
    if platform and artifact.platforms and not any(_same(platform, each) for each in artifact.platforms):
        return Suitability.IMPOSSIBLE
    kind, on_apple = _kind(artifact), capability in _DARWIN
    if kind is None or kind.serves(capability):
        return Suitability.COMPATIBLE
    if on_apple or kind.name == "Apple" or (kind.name == "Jetson" and platform.startswith("linux/amd64")):
        return Suitability.IMPOSSIBLE
    return Suitability.OVERRIDE


def preference(artifact: Artifact, capability: str) -> int:
    """Sort key among builds of one alias: the lowest wins."""
    family = "nvidia" if capability.startswith("nvidia") else capability
    wanted = _PREFERRED.get(family, ("cpu",))
    words = _words(artifact)
    ranks = [rank for rank, start in enumerate(wanted) if any(word.startswith(start) for word in words)]
    return min(ranks, default=len(wanted))


def capability_of(reported: str | None, vendor: str | None, vram: int | None) -> str:
    """Return the capability of a node that did not report one: a card with up to 4 GiB does not count."""
    if reported:
        return reported
    return vendor if vendor and (vram or 0) > 4 * 1024**3 else "default"


def _kind(artifact: Artifact) -> _Kind | None:
    words = _words(artifact)
    return next((kind for kind in _KINDS if any(_matches(kind, word) for word in words)), None)


def _matches(kind: _Kind, word: str) -> bool:
    """`cuda12` and `hipblas` match; `amd64` is a processor."""
    return word.startswith(kind.words) and not word.startswith("amd64")


def _words(artifact: Artifact) -> list[str]:
    """Use only the part of the uri after the host: a vendor's registry name says nothing about the build."""
    address = artifact.uri.partition("://")[2] or artifact.uri
    below_host = address.partition("/")[2]
    return re.findall(r"[a-z0-9]+", f"{artifact.name} {below_host}".casefold())


def _same(platform: str, listed: str) -> bool:
    wanted = listed.casefold().split("/")
    return platform.casefold().split("/")[: len(wanted)] == wanted
