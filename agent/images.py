"""Images in a registry: what a reference means for this machine, and its layers as sources."""

import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

import structlog

from agent.failures import OperationFailed
from agent.sources import Stream, Timeouts, answer, check, failure_of, ranged, stream_of
from agent.ways import Way, Ways
from domain.operation import Reason
from gallery.oci import Layer, NoSuchPlatform, NotOci, Platform, Reference
from gallery.registry import Registry, RegistryFailed

log = structlog.stdlib.get_logger(__name__)

_ARCHITECTURES = {
    "x86_64": ("amd64", ""),
    "amd64": ("amd64", ""),
    "aarch64": ("arm64", ""),
    "arm64": ("arm64", ""),
    "armv7l": ("arm", "v7"),
}


def this_platform(machine: str = "") -> Platform:
    """Images are Linux's, whatever runs them."""
    machine = (machine or platform.machine()).lower()
    architecture, variant = _ARCHITECTURES.get(machine, (machine, ""))
    return Platform("linux", architecture, variant)


@dataclass(frozen=True)
class Image:
    """What a reference stands for: its digest, and the layers of the build for this machine."""

    reference: Reference
    digest: str
    layers: list[Layer]


class Images:
    """Reads manifests; knows where a layer is."""

    def __init__(self, ways: Ways, timeouts: Timeouts, platform: Platform) -> None:
        self._ways = ways
        self._timeouts = timeouts
        self._platform = platform

    async def find(self, reference: Reference) -> Image:
        async with self._ways.to(reference.host) as way:
            registry = registry_of(way, self._timeouts)
            try:
                digest, layers = await registry.layers(reference, self._platform)
            except NoSuchPlatform as error:
                raise OperationFailed(Reason.UNSUPPORTED_PLATFORM, f"{reference}: {error}") from error
            except NotOci as error:
                raise OperationFailed(Reason.BAD_DIGEST, f"{reference}: {error}") from error
            except RegistryFailed as error:
                raise _failed(error) from error
        return Image(reference, digest, layers)

    def layer(self, reference: Reference, layer: Layer) -> "LayerSource":
        return LayerSource(reference, layer.digest, self._ways, self._timeouts)


@dataclass(frozen=True)
class LayerSource:
    """One layer: its digest is its name, so no validator is needed."""

    reference: Reference
    digest: str
    ways: Ways
    timeouts: Timeouts

    @property
    def uri(self) -> str:
        return f"{self.reference.base_url}/blobs/{self.digest}"

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        del validator
        async with self.ways.to(self.reference.host) as way:
            headers = await self._authorized(way) | ranged(start, "")
            async with answer(way.http, self.uri, headers, self.timeouts, follow_redirects=True) as response:
                check(response, start)
                yield stream_of(response)

    async def _authorized(self, way: Way) -> dict[str, str]:
        """Ask without a credential first: the refusal tells which one is wanted."""
        registry = registry_of(way, self.timeouts)
        async with answer(way.http, self.uri, {"Range": "bytes=0-0"}, self.timeouts, follow_redirects=False) as asked:
            if asked.status_code != HTTPStatus.UNAUTHORIZED:
                return {}
            challenge = asked.headers.get("WWW-Authenticate", "")
        try:
            await registry.authorize(self.reference, challenge)
        except RegistryFailed as error:
            raise _failed(error) from error
        return registry.authorization(self.reference)


def registry_of(way: Way, timeouts: Timeouts) -> Registry:
    return Registry(way.http, username=way.username, password=way.password, timeout=timeouts.header)


def _failed(error: RegistryFailed) -> OperationFailed:
    if not error.status:
        return OperationFailed(Reason.SOURCE_DOWN, str(error))
    return failure_of(error.status, str(error), error.retry_after)
