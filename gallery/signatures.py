"""Finds the published signatures of an artifact, and returns the keys that made them."""

import asyncio
from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from urllib.parse import urlsplit, urlunsplit

import httpx2

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.domain.addresses import without_query
from nodesmith.domain.errors import RegistryDown
from nodesmith.domain.source_policy import SourcePolicy
from nodesmith.gallery import cosign, minisign, oci
from nodesmith.gallery.artifact_keys import PublicKey, read_key
from nodesmith.gallery.index_reader import Access, IndexReader, Unreachable, client_for
from nodesmith.gallery.oci import NotOci, Reference, read_reference
from nodesmith.gallery.registry import Registry, RegistryFailed, registry_for

MINISIG, BUNDLE = ".minisig", ".sigstore.json"
"""suffix of the address of an archive"""
LARGEST = 256 * 1024
_MOST = 16
_TIMEOUT_S = 30.0


class PublishedSignatures:
    """Uses an admin's settings for a host; `timeout` covers one whole lookup."""

    def __init__(self, access: Access, policy: SourcePolicy, *, timeout: float = _TIMEOUT_S) -> None:
        self._access = access
        self._policy = policy
        self._files = IndexReader(access, policy, timeout=timeout)
        self._timeout = timeout

    async def signers(self, uris: Sequence[str], sha256: str, keys: Sequence[str]) -> set[str]:
        """Return the ids of the keys that signed this digest, from the first of these places with any signature."""
        trusted = [read_key(text) for text in keys]
        failures: list[str] = []
        for uri in uris:
            try:
                async with asyncio.timeout(self._timeout):
                    if found := await self._at(uri, sha256, trusted):
                        return found
            except (Unreachable, RegistryFailed, NotOci, httpx2.HTTPError, OSError, TimeoutError) as error:
                failures.append(str(error) or type(error).__name__)
        if failures:
            raise RegistryDown(f"The signatures of {without_query(uris[0])} cannot be read: {'; '.join(failures)}.")
        return set()

    async def _at(self, uri: str, sha256: str, keys: Sequence[PublicKey]) -> set[str]:
        if oci.is_reference(uri):
            return await self._of_image(read_reference(uri).at(f"sha256:{sha256}"), keys)
        return await self._of_file(uri, sha256, keys)

    # archives -------------------------------------------------------------------------------------------------

    async def _of_file(self, uri: str, sha256: str, keys: Sequence[PublicKey]) -> set[str]:
        signature = await self._files.small(_beside(uri, MINISIG), LARGEST)
        bundle = await self._files.small(_beside(uri, BUNDLE), LARGEST)
        found = _minisign_signers(signature or b"", sha256, keys)
        return found | cosign.bundle_signers(bundle or b"", sha256, keys)

    # images ---------------------------------------------------------------------------------------------------

    async def _of_image(self, image: Reference, keys: Sequence[PublicKey]) -> set[str]:
        access = await self._access(image.host) or SourceAccess(host=image.host)
        async with client_for(access, self._policy) as http:
            registry = registry_for(access, http, self._timeout)
            return await _simple(registry, image, keys) | await _bundles(registry, image, keys)


async def _simple(registry: Registry, image: Reference, keys: Sequence[PublicKey]) -> set[str]:
    """cosign's own location: a manifest under the tag `sha256-....sig`, with a payload in each layer."""
    tag = image.tagged(f"{image.digest.replace(':', '-')}.sig")
    found: set[str] = set()
    for layer in oci.described(await _empty_if_missing(registry.document(tag)), "layers")[:_MOST]:
        signature = layer.annotations.get(cosign.SIGNATURE, "")
        payload = await registry.blob(image, layer.digest)
        found |= cosign.simple_signers(payload, signature, image.digest, keys)
    return found


async def _bundles(registry: Registry, image: Reference, keys: Sequence[PublicKey]) -> set[str]:
    """The newer location: manifests that refer to the image, with a sigstore bundle in each."""
    found: set[str] = set()
    referrers = oci.described(await _empty_if_missing(registry.referrers(image)), "manifests")
    for referrer in [each for each in referrers if each.kind.startswith(cosign.BUNDLE)][:_MOST]:
        manifest = await registry.document(image.at(referrer.digest))
        for layer in oci.described(manifest, "layers")[:1]:
            bundle = await registry.blob(image, layer.digest)
            found |= cosign.bundle_signers(bundle, image.digest.removeprefix("sha256:"), keys)
    return found


async def _empty_if_missing(asking: Awaitable[bytes]) -> bytes:
    """Return nothing on a 404: then there are no signatures."""
    try:
        return await asking
    except RegistryFailed as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return b"{}"


def _minisign_signers(content: bytes, sha256: str, keys: Sequence[PublicKey]) -> set[str]:
    """Return the keys whose holders stated that sha256; the archive itself is not read."""
    try:
        signatures = minisign.read_signatures(content.decode()) if content else []
    except ValueError:
        return set()
    return {key.id for key in keys for signature in signatures if signature.states(key) == sha256}


def _beside(uri: str, ending: str) -> str:
    """Return the signature's address; a query (a presigned address) is valid for the archive only."""
    parts = urlsplit(uri)
    return urlunsplit((parts.scheme, parts.netloc, parts.path + ending, "", ""))
