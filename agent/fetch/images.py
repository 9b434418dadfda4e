"""Resolves image references for this machine's platform, and provides image layers as sources."""

import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

import structlog

from nodesmith.agent.fetch.host_access import HostAccess, HostClient
from nodesmith.agent.fetch.sources import (
    Stream,
    Timeouts,
    check_status,
    failure_of,
    open_response,
    range_headers,
    stream_of,
)
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.domain.operation import Reason
from nodesmith.gallery.oci import Layer, NoSuchPlatform, NotOci, Platform, Reference
from nodesmith.gallery.registry import Registry, RegistryFailed

log = structlog.stdlib.get_logger(__name__)

_ARCHITECTURES = {
    "x86_64": ("amd64", ""),
    "amd64": ("amd64", ""),
    "aarch64": ("arm64", ""),
    "arm64": ("arm64", ""),
    "armv7l": ("arm", "v7"),
}


def this_platform(machine: str = "") -> Platform:
    """Return this machine's platform; images are always built for Linux."""
    machine = (machine or platform.machine()).lower()
    architecture, variant = _ARCHITECTURES.get(machine, (machine, ""))
    return Platform("linux", architecture, variant)


@dataclass(frozen=True)
class Image:
    """A resolved reference: its digest, and the layers of the build for this machine."""

    reference: Reference
    digest: str
    layers: list[Layer]


class Images:
    """Reads manifests and provides layer sources."""

    def __init__(self, hosts: HostAccess, timeouts: Timeouts, platform: Platform) -> None:
        self._hosts = hosts
        self._timeouts = timeouts
        self._platform = platform

    async def find(self, reference: Reference) -> Image:
        async with self._hosts.to(reference.host) as client:
            registry = registry_of(client, self._timeouts)
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
        return LayerSource(reference, layer.digest, self._hosts, self._timeouts)


@dataclass(frozen=True)
class LayerSource:
    """One layer, addressed by its digest, so no validator is needed."""

    reference: Reference
    digest: str
    hosts: HostAccess
    timeouts: Timeouts

    @property
    def uri(self) -> str:
        return f"{self.reference.base_url}/blobs/{self.digest}"

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        del validator
        async with self.hosts.to(self.reference.host) as client:
            headers = await self._authorized(client) | range_headers(start, "")
            async with open_response(client.http, self.uri, headers, self.timeouts, follow_redirects=True) as response:
                check_status(response, start)
                yield stream_of(response)

    async def _authorized(self, client: HostClient) -> dict[str, str]:
        """Request without a credential first, because the challenge names the required authorization."""
        registry = registry_of(client, self.timeouts)
        async with open_response(
            client.http, self.uri, {"Range": "bytes=0-0"}, self.timeouts, follow_redirects=False
        ) as probe:
            if probe.status_code != HTTPStatus.UNAUTHORIZED:
                return {}
            challenge = probe.headers.get("WWW-Authenticate", "")
        try:
            await registry.authorize(self.reference, challenge)
        except RegistryFailed as error:
            raise _failed(error) from error
        return registry.authorization(self.reference)


def registry_of(client: HostClient, timeouts: Timeouts) -> Registry:
    return Registry(
        client.http, username=client.username, password=client.password, realms=client.realms, timeout=timeouts.header
    )


def _failed(error: RegistryFailed) -> OperationFailed:
    if not error.status:
        return OperationFailed(Reason.SOURCE_DOWN, str(error))
    return failure_of(error.status, str(error), error.retry_after)
