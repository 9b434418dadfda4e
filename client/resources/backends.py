"""The catalogue of backends, galleries, uploads and sources."""

from typing import BinaryIO

from nodesmith.client.calls import Call, Mode, Resource, endpoint, paged, segment
from nodesmith.contracts.http.backends import BackendPage
from nodesmith.contracts.http.galleries import (
    GalleryRequest,
    GalleryView,
    NodeSuitability,
    TrustRequest,
    UpgradeInfo,
    UploadView,
)
from nodesmith.contracts.http.shared import Message, Page
from nodesmith.contracts.http.sources import SourceRequest, SourceView


class Backends(Resource[Mode]):
    def _list(
        self,
        *,
        text: str = "",
        tag: str = "",
        gallery: str = "",
        sort: str = "name",
        descending: bool = False,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Call[BackendPage]:
        """Backends that can be installed by name, and where they are installed."""
        query = {"text": text, "tag": tag, "gallery": gallery, "sort": sort, "descending": descending}
        return Call("GET", "/backends", BackendPage, query={**query, "limit": limit, "cursor": cursor})

    list = endpoint(_list)
    each = paged(_list)

    @endpoint
    def upgrades(self) -> Call[Page[UpgradeInfo]]:
        """Backends that can be upgraded."""
        return Call("GET", "/backends/upgrades", Page[UpgradeInfo])

    @endpoint
    def check_upgrades(self) -> Call[Page[UpgradeInfo]]:
        """Ask the registries now."""
        return Call("POST", "/backends/upgrades/check", Page[UpgradeInfo])

    @endpoint
    def suitability(self, backend: str) -> Call[Page[NodeSuitability]]:
        """Whether a backend fits each node, and which build the node would get."""
        return Call("GET", "/backends/suitability", Page[NodeSuitability], query={"backend": backend})


class Galleries(Resource[Mode]):
    @endpoint
    def list(self) -> Call[Page[GalleryView]]:
        """All galleries in order of precedence."""
        return Call("GET", "/galleries", Page[GalleryView])

    @endpoint
    def get(self, name: str) -> Call[GalleryView]:
        return Call("GET", f"/galleries/{segment(name)}", GalleryView)

    @endpoint
    def create(self, request: GalleryRequest, *, reason: str = "") -> Call[GalleryView]:
        """Add a gallery; it is read first."""
        return Call("POST", "/galleries", GalleryView, request, {"reason": reason})

    @endpoint
    def set_trust(self, name: str, request: TrustRequest, *, reason: str = "") -> Call[GalleryView]:
        """Set which signatures its artifacts need."""
        return Call("PUT", f"/galleries/{segment(name)}/trust", GalleryView, request, {"reason": reason})

    @endpoint
    def delete(self, name: str, *, reason: str = "") -> Call[Message]:
        return Call("DELETE", f"/galleries/{segment(name)}", Message, query={"reason": reason})

    @endpoint
    def refresh(self, name: str) -> Call[GalleryView]:
        """Read one gallery again now."""
        return Call("POST", f"/galleries/{segment(name)}/refresh", GalleryView)

    @endpoint
    def refresh_all(self) -> Call[Page[GalleryView]]:
        return Call("POST", "/galleries/refresh", Page[GalleryView])


class Uploads(Resource[Mode]):
    @endpoint
    def list(self) -> Call[Page[UploadView]]:
        """The archives that were uploaded into the built-in gallery."""
        return Call("GET", "/uploads", Page[UploadView])

    @endpoint
    def get(self, name: str, version: str) -> Call[UploadView]:
        """One archive of the built-in gallery."""
        return Call("GET", f"/uploads/{segment(name)}/{segment(version)}", UploadView)

    @endpoint
    def create(
        self,
        name: str,
        version: str,
        archive: BinaryIO,
        *,
        sha256: str = "",
        description: str = "",
        tags: tuple[str, ...] = (),
        reason: str = "",
    ) -> Call[UploadView]:
        """Upload an archive; a version is never replaced."""
        query = {"sha256": sha256, "description": description, "tag": [*tags] or None, "reason": reason}
        return Call("PUT", f"/uploads/{segment(name)}/{segment(version)}", UploadView, query=query, upload=archive)

    @endpoint
    def delete(self, name: str, version: str, *, reason: str = "") -> Call[UploadView]:
        path = f"/uploads/{segment(name)}/{segment(version)}"
        return Call("DELETE", path, UploadView, query={"reason": reason})


class Sources(Resource[Mode]):
    @endpoint
    def list(self) -> Call[Page[SourceView]]:
        """The hosts with settings, without the passwords."""
        return Call("GET", "/sources", Page[SourceView])

    @endpoint
    def set(self, host: str, settings: SourceRequest, *, reason: str = "") -> Call[SourceView]:
        """Set how a host is reached: credential, certificates and proxy, all at once."""
        return Call("PUT", f"/sources/{segment(host)}", SourceView, settings, {"reason": reason})

    @endpoint
    def delete(self, host: str, *, reason: str = "") -> Call[Message]:
        return Call("DELETE", f"/sources/{segment(host)}", Message, query={"reason": reason})
