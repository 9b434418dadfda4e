"""A small registry: manifests and blobs on the tests' web server, which can inject the same faults."""

import json
from dataclasses import dataclass
from typing import Any

from nodesmith.gallery import oci
from tests.agent.archives import digest
from tests.agent.web import Served, Web

CONFIG = b"{}"


@dataclass
class Published:
    """An image in the registry."""

    site: Web
    name: str
    tag: str
    digest: str
    """digest of the index, or of the only manifest"""
    layers: list[str]

    @property
    def host(self) -> str:
        return self.site.url.removeprefix("http://")

    @property
    def reference(self) -> str:
        return f"{self.host}/{self.name}:{self.tag}"

    def blob(self, number: int = 0) -> Served:
        return self.site.files[self.blob_path(number)]

    def blob_path(self, number: int = 0) -> str:
        return f"/v2/{self.name}/blobs/{self.layers[number]}"

    def manifest(self, reference: str = "") -> Served:
        return self.site.files[f"/v2/{self.name}/manifests/{reference or self.tag}"]


def publish(
    site: Web, layers: list[bytes], *, name: str = "team/echo", tag: str = "1", index: bool = True, **how: Any
) -> Published:
    """Publish the layers of the amd64 build; the other platform gets a different build."""
    digests = [_blob(site, name, layer, how) for layer in layers]
    manifest = _manifest(site, name, [(each, len(layer)) for each, layer in zip(digests, layers, strict=True)], how)
    top = manifest
    if index:
        other = _manifest(site, name, [(_blob(site, name, b"for arm64", how), 9)], how)
        top = _index(site, name, {"amd64": manifest, "arm64": other}, how)
    path = f"/v2/{name}/manifests"
    site.files[f"{path}/{tag}"] = site.files[f"{path}/{top}"]
    return Published(site, name, tag, top, digests)


def _blob(site: Web, name: str, content: bytes, how: dict[str, Any]) -> str:
    found = f"sha256:{digest(content)}"
    site.serve(f"/v2/{name}/blobs/{found}", content, **how)
    return found


def _manifest(site: Web, name: str, layers: list[tuple[str, int]], how: dict[str, Any]) -> str:
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    listed = [{"mediaType": kind, "digest": each, "size": size} for each, size in layers]
    config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": f"sha256:{digest(CONFIG)}", "size": 2}
    return _document(site, name, {"mediaType": oci.MANIFEST_TYPES[0], "config": config, "layers": listed}, how)


def _index(site: Web, name: str, manifests: dict[str, str], how: dict[str, Any]) -> str:
    listed = [
        {"digest": each, "platform": {"os": "linux", "architecture": architecture}}
        for architecture, each in manifests.items()
    ]
    return _document(site, name, {"mediaType": oci.INDEX_TYPES[0], "manifests": listed}, how)


def _document(site: Web, name: str, document: dict[str, Any], how: dict[str, Any]) -> str:
    content = json.dumps({"schemaVersion": 2, **document}).encode()
    found = f"sha256:{digest(content)}"
    headers = {"Docker-Content-Digest": found, "Content-Type": document["mediaType"]}
    site.serve(f"/v2/{name}/manifests/{found}", content, headers=headers, **how)
    return found
