"""OCI references, indexes and manifests: parsing and platform choice, without network access."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DOCKER_HUB = "docker.io"
_HUB_ADDRESS = "registry-1.docker.io"
_LONGEST = 1024

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPTED = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))

_DIGEST = r"sha256:[0-9a-f]{64}"
_REFERENCE = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::[0-9]+)?)/"
    r"(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    rf"(?:@(?P<digest>{_DIGEST}))?"
)


class NotOci(ValueError):
    """The content is not valid OCI data."""


class NoSuchPlatform(NotOci):
    """The image has no build for this platform."""


@dataclass(frozen=True)
class Reference:
    """registry/name:tag@digest; a digest takes precedence over a tag."""

    host: str
    name: str
    tag: str = "latest"
    digest: str = ""

    @property
    def wanted(self) -> str:
        """The tag or digest to request."""
        return self.digest or self.tag

    @property
    def base_url(self) -> str:
        """The URL of the registry: without TLS on this machine, as all clients do."""
        address = _HUB_ADDRESS if self.host == DOCKER_HUB else self.host
        scheme = "http" if is_local(address) else "https"
        return f"{scheme}://{address}/v2/{self.name}"

    def at(self, digest: str) -> "Reference":
        """The same repository, by digest."""
        return Reference(self.host, self.name, self.tag, digest)

    def tagged(self, tag: str) -> "Reference":
        """The same repository, by another tag."""
        return Reference(self.host, self.name, tag)

    def __str__(self) -> str:
        return f"{self.host}/{self.name}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


@dataclass(frozen=True)
class Platform:
    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


@dataclass(frozen=True)
class Layer:
    digest: str
    size: int


@dataclass(frozen=True)
class Descriptor:
    """An entry of a manifest or index."""

    digest: str
    kind: str
    """its artifact type, if it has one"""
    annotations: Mapping[str, str]


def is_local(address: str) -> bool:
    host = address.rsplit(":", 1)[0]
    return host == "localhost" or host.startswith("127.")


def is_reference(uri: str) -> bool:
    """Return whether a uri names something in a registry: `oci://...`, or a bare host/name or org/name."""
    try:
        read_reference(uri)
    except NotOci:
        return False
    return True


def read_reference(uri: str) -> Reference:
    """Parse `oci://host/name:tag`, `host/name@sha256:...` or Docker Hub's `org/name`."""
    bare = uri.removeprefix("oci://").removeprefix("docker://")
    if len(bare) > _LONGEST or "://" in bare or "/" not in bare:
        raise NotOci(f"{uri!r} is not a registry reference.")
    first = bare.split("/", 1)[0]
    has_host = "." in first or ":" in first or first == "localhost"
    found = _REFERENCE.fullmatch(bare if has_host else f"{DOCKER_HUB}/{bare}")
    if found is None or ".." in bare:
        raise NotOci(f"{uri!r} is not a registry reference.")
    return Reference(found["host"], found["name"], found["tag"] or "latest", found["digest"] or "")


def read_document(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NotOci("The registry's response is not JSON.") from error
    if not isinstance(document, dict):
        raise NotOci("The registry's response is not a manifest.")
    return document


def is_index(document: dict[str, Any]) -> bool:
    return document.get("mediaType") in INDEX_TYPES or "manifests" in document


def choose(index: dict[str, Any], platform: Platform) -> str:
    """Return the digest of the manifest for a platform; `NoSuchPlatform` lists the available ones."""
    entries = [(entry, _object(entry.get("platform") or {})) for entry in _objects(index.get("manifests"))]
    fitting = [(entry, str(spec.get("variant") or "")) for entry, spec in entries if _fits(spec, platform)]
    if fitting:
        return _digest(min(fitting, key=lambda each: _distance(each[1], platform.variant))[0])
    there = sorted({f"{spec.get('os', '?')}/{spec.get('architecture', '?')}" for _, spec in entries})
    raise NoSuchPlatform(f"There is no build for {platform}; available: {', '.join(there) or 'none'}.")


def described(content: bytes, key: str) -> list[Descriptor]:
    """Return the entries of a manifest or index under `key`; empty if there are none."""
    return [_descriptor(entry) for entry in _objects(read_document(content).get(key))]


def layers(manifest: dict[str, Any]) -> list[Layer]:
    """Return the layers, lowest first."""
    listed = _objects(manifest.get("layers"))
    if not listed:
        raise NotOci("The manifest has no layers.")
    return [Layer(_digest(entry), _size(entry)) for entry in listed]


def _descriptor(entry: dict[str, Any]) -> Descriptor:
    annotations = _object(entry.get("annotations") or {})
    texts = {key: value for key, value in annotations.items() if isinstance(value, str)}
    return Descriptor(_digest(entry), str(entry.get("artifactType") or ""), texts)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [_object(each) for each in value] if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotOci("The registry's response is not a manifest.")
    return value


def _fits(spec: dict[str, Any], platform: Platform) -> bool:
    """A processor runs builds for older variants, but not for newer ones."""
    if spec.get("os") != platform.os or spec.get("architecture") != platform.architecture:
        return False
    return not platform.variant or _number(str(spec.get("variant") or "")) <= _number(platform.variant)


def _distance(variant: str, ours: str) -> int:
    """Prefer the nearest variant below ours; if ours is unknown, the oldest."""
    return abs(_number(ours) - _number(variant))


def _number(variant: str) -> int:
    """`v7` -> 7; no variant sorts first."""
    digits = variant.removeprefix("v")
    return int(digits) if digits.isdecimal() else 0


def _digest(entry: dict[str, Any]) -> str:
    digest = entry.get("digest")
    if not isinstance(digest, str) or re.fullmatch(_DIGEST, digest) is None:
        raise NotOci(f"The registry's response has {digest!r} where a sha256 digest is expected.")
    return digest


def _size(entry: dict[str, Any]) -> int:
    size = entry.get("size")
    if not isinstance(size, int) or size < 0:
        raise NotOci("The manifest lacks the sizes of its layers.")
    return size
