"""Whether a build fits a node, told from the words in its name and uri, as LocalAI's galleries are written."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from domain.artifact import Artifact
from domain.wire import WireEnum

_DARWIN = frozenset({"metal", "darwin-x86"})


class Suitability(WireEnum):
    COMPATIBLE = "compatible"
    OVERRIDE = "override"
    """made for other hardware; it may start all the same, if somebody insists"""
    IMPOSSIBLE = "impossible"
    """made for another system or processor"""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class _Kind:
    """A kind of hardware: the words that tell it, and the capabilities that serve it."""

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
"""in the order in which they are tried; a build of none of them runs everywhere"""

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
    """How a build fits a node of this capability; `platform` (linux/amd64) is used when both sides say one."""
    if platform and artifact.platforms and not any(_same(platform, each) for each in artifact.platforms):
        return Suitability.IMPOSSIBLE
    kind, on_apple = _kind(artifact), capability in _DARWIN
    if kind is None or kind.serves(capability):
        return Suitability.COMPATIBLE
    if on_apple or kind.name == "Apple" or (kind.name == "Jetson" and platform.startswith("linux/amd64")):
        return Suitability.IMPOSSIBLE
    return Suitability.OVERRIDE


def preference(artifact: Artifact, capability: str) -> int:
    """Among builds of one alias the lowest is taken."""
    family = "nvidia" if capability.startswith("nvidia") else capability
    wanted = _PREFERRED.get(family, ("cpu",))
    words = _words(artifact)
    ranks = [rank for rank, start in enumerate(wanted) if any(word.startswith(start) for word in words)]
    return min(ranks, default=len(wanted))


def capability_of(reported: str | None, vendor: str | None, vram: int | None) -> str:
    """What a node counts as that did not say so itself: a card with up to 4 GiB is no help."""
    if reported:
        return reported
    return vendor if vendor and (vram or 0) > 4 * 1024**3 else "default"


def _kind(artifact: Artifact) -> _Kind | None:
    words = _words(artifact)
    return next((kind for kind in _KINDS if any(_tells(kind, word) for word in words)), None)


def _tells(kind: _Kind, word: str) -> bool:
    """`cuda12` and `hipblas` do; `amd64` is a processor."""
    return word.startswith(kind.words) and not word.startswith("amd64")


def _words(artifact: Artifact) -> list[str]:
    """Of the uri only what comes after the host: a vendor's own registry says nothing."""
    address = artifact.uri.partition("://")[2] or artifact.uri
    below_host = address.partition("/")[2]
    return re.findall(r"[a-z0-9]+", f"{artifact.name} {below_host}".casefold())


def _same(platform: str, listed: str) -> bool:
    wanted = listed.casefold().split("/")
    return platform.casefold().split("/")[: len(wanted)] == wanted
