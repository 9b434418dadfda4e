"""HTTP client of a registry: manifests by tag or digest, and its authentication."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

import httpx2
import structlog

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.gallery import oci
from nodesmith.gallery.oci import Layer, NotOci, Platform, Reference
from nodesmith.gallery.source_http import UnusableBody, read_body

log = structlog.stdlib.get_logger(__name__)

_LARGEST_MANIFEST = 4 * 1024 * 1024
_LARGEST_TOKEN = 256 * 1024
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_S = 30.0
_KNOWN_REALMS = {"registry-1.docker.io": "auth.docker.io"}
"""registry -> host of its token service, for registries known to use another host"""
_REFERRERS_UNKNOWN = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)


class RegistryFailed(Exception):
    """The registry did not return the requested object; `status` is 0 if it could not be reached."""

    def __init__(self, message: str, *, status: int = 0, retry_after: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True)
class _Answer:
    status: int
    words: str
    headers: httpx2.Headers
    content: bytes
    host: str
    """the host that responded: after a redirect, another one"""


class Registry:
    """One registry with one user's credential; tokens are cached in this object.

    The password is sent to the registry's own host, and to token services that are known or allowed for it (`realms`).
    """

    def __init__(
        self,
        http: httpx2.AsyncClient,
        *,
        username: str = "",
        password: str = "",
        realms: Collection[str] = (),
        timeout: float = _TIMEOUT_S,
    ) -> None:
        self._http = http
        self._username = username
        self._password = password
        self._realms = frozenset(realm.casefold() for realm in realms)
        self._timeout = timeout
        self._tokens: dict[str, str] = {}

    async def digest(self, reference: Reference) -> str:
        """Return the current digest of a tag: of the index if there is one, as nodes record it."""
        if reference.digest:
            return reference.digest
        answer = await self._ask("HEAD", reference, _manifest(reference))
        reported = answer.headers.get("Docker-Content-Digest", "")
        if re.fullmatch(r"sha256:[0-9a-f]{64}", reported):
            return reported
        return f"sha256:{hashlib.sha256(await self.document(reference)).hexdigest()}"

    async def layers(self, reference: Reference, platform: Platform) -> tuple[str, list[Layer]]:
        """Return the digest of the reference, and the layers of the build for a platform."""
        content = await self.document(reference)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        document = oci.read_document(content)
        if oci.is_index(document):
            chosen = reference.at(oci.choose(document, platform))
            document = oci.read_document(await self.document(chosen))
        return digest, oci.layers(document)

    async def document(self, reference: Reference) -> bytes:
        """Return the manifest or index itself."""
        content = (await self._ask("GET", reference, _manifest(reference))).content
        _check_digest(content, reference.digest)
        return content

    async def blob(self, reference: Reference, digest: str) -> bytes:
        """Return a small blob as a whole, such as a signature."""
        content = (await self._ask("GET", reference, f"blobs/{digest}")).content
        _check_digest(content, digest)
        return content

    async def referrers(self, reference: Reference) -> bytes:
        """Return the index of what refers to this digest; `RegistryFailed` with 404 if there is none."""
        try:
            return (await self._ask("GET", reference, f"referrers/{reference.digest}")).content
        except RegistryFailed as error:
            if error.status not in _REFERRERS_UNKNOWN:
                raise
        # for a registry without that route, clients keep the same index under a tag
        return await self.document(reference.tagged(reference.digest.replace(":", "-")))

    def authorization(self, reference: Reference) -> dict[str, str]:
        """Return the header that the last request to this repository needed."""
        known = self._tokens.get(reference.name)
        return {"Authorization": known} if known else {}

    async def authorize(self, reference: Reference, challenge: str) -> bool:
        """Authenticate after the registry's 401; False if there is no (other) credential."""
        before = self._tokens.pop(reference.name, "")
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self._username:
            self._tokens[reference.name] = self._basic()
        elif kind.lower() == "bearer":
            self._tokens[reference.name] = f"Bearer {await self._token(reference, dict(_CHALLENGE.findall(rest)))}"
        return self._tokens.get(reference.name, before) != before

    async def _ask(self, method: str, reference: Reference, path: str) -> _Answer:
        """Send a request; authenticate and repeat it if the registry's own host, and no other, requires that."""
        answer = await self._send(method, reference, path)
        if answer.status == HTTPStatus.UNAUTHORIZED and answer.host == _address(reference):
            challenge = answer.headers.get("WWW-Authenticate", "")
            if await self.authorize(reference, challenge):
                answer = await self._send(method, reference, path)
        if answer.status != HTTPStatus.OK:
            raise RegistryFailed(
                f"{reference}: the registry answered {answer.status} {answer.words}".rstrip(),
                status=answer.status,
                retry_after=answer.headers.get("Retry-After", ""),
            )
        return answer

    async def _send(self, method: str, reference: Reference, path: str) -> _Answer:
        headers = {"Accept": oci.ACCEPTED, **self.authorization(reference)}
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._http.stream(
                    method,
                    f"{reference.base_url}/{path}",
                    headers=headers,
                    timeout=self._timeout,
                    follow_redirects=True,
                ) as response,
            ):
                content = await _read(response, _LARGEST_MANIFEST)
                host = urlsplit(str(response.url)).netloc
                return _Answer(response.status_code, response.reason_phrase, response.headers, content, host)
        except httpx2.TooManyRedirects as error:
            raise RegistryFailed(f"{reference}: {error}", status=HTTPStatus.FOUND) from error
        except (httpx2.HTTPError, TimeoutError) as error:
            raise _unreachable(reference, error) from error

    async def _token(self, reference: Reference, asked: dict[str, str]) -> str:
        """Fetch a bearer token from the token service that the registry names, for pulling this repository only."""
        params = {"scope": asked.get("scope") or f"repository:{reference.name}:pull"}
        if asked.get("service"):
            params["service"] = asked["service"]
        realm = self._checked_realm(reference, asked.get("realm", ""))
        headers = {"Authorization": self._basic()} if self._username else {}
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._http.stream(
                    "GET", realm, params=params, headers=headers, timeout=self._timeout, follow_redirects=False
                ) as response,
            ):
                status, content = response.status_code, await _read(response, _LARGEST_TOKEN)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            raise _unreachable(reference, error) from error
        except NotOci as error:
            raise RegistryFailed(f"{reference}: {error}", status=HTTPStatus.UNAUTHORIZED) from error
        token = _token_in(content) if status == HTTPStatus.OK else ""
        if not token:
            refused = HTTPStatus.UNAUTHORIZED if status < HTTPStatus.BAD_REQUEST else status
            raise RegistryFailed(f"{reference}: the registry's token service answered {status}", status=refused)
        return token

    def _checked_realm(self, reference: Reference, realm: str) -> str:
        """Refuse a foreign realm: the response chooses it, so only the registry's own service may get the password."""
        try:
            parts = urlsplit(realm)
        except ValueError:
            parts = urlsplit("")
        own = _address(reference)
        is_encrypted = parts.scheme == "https" or (parts.scheme == "http" and oci.is_local(own))
        if not parts.hostname or not is_encrypted or parts.username:
            sentence = f"{reference}: the registry names no usable token service"
            raise RegistryFailed(sentence, status=HTTPStatus.UNAUTHORIZED)
        host = parts.netloc.casefold()
        if self._username and host not in {own.casefold(), _KNOWN_REALMS.get(own, own), *self._realms}:
            raise RegistryFailed(
                f"{reference}: the registry requests its password for {host}, which is not allowed."
                f" If that is its token service: nodesmith sources add {reference.host} --realm {host}",
                status=HTTPStatus.UNAUTHORIZED,
            )
        return realm

    def _basic(self) -> str:
        return basic(self._username, self._password)


def registry_for(access: SourceAccess, http: httpx2.AsyncClient, timeout: float) -> Registry:
    """The registry with an admin's settings for its host."""
    return Registry(http, username=access.username, password=access.password, realms=access.realms, timeout=timeout)


def basic(username: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


def _manifest(reference: Reference) -> str:
    return f"manifests/{reference.wanted}"


def _address(reference: Reference) -> str:
    return urlsplit(reference.base_url).netloc


def _check_digest(content: bytes, wanted: str) -> None:
    found = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if wanted and found != wanted:
        raise NotOci(f"The registry returned different content for {wanted}.")


def _token_in(content: bytes) -> str:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    token = (answer.get("token") or answer.get("access_token")) if isinstance(answer, dict) else ""
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else ""


async def _read(response: httpx2.Response, largest: int) -> bytes:
    """Limit the size: manifests and tokens are small."""
    try:
        return await read_body(response, largest)
    except UnusableBody as error:
        raise NotOci(f"The registry's response {error}.") from error


def _unreachable(reference: Reference, error: Exception) -> RegistryFailed:
    """Omit the error's own text, which would tell an open port from a closed one. The log has it."""
    log.info("registry.unreachable", registry=reference.host, error=str(error) or type(error).__name__)
    return RegistryFailed(f"{reference}: the registry cannot be reached")
