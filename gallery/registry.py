"""A registry over HTTP: manifests by tag or digest, and what it wants as a credential."""

import asyncio
import base64
import hashlib
import re
from dataclasses import dataclass
from http import HTTPStatus

import httpx2

from gallery import oci
from gallery.oci import Layer, NotOci, Platform, Reference

_LARGEST_MANIFEST = 4 * 1024 * 1024
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_S = 30.0


class RegistryFailed(Exception):
    """The registry did not give what was asked for; `status` is 0 when it could not be reached."""

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


class Registry:
    """One registry as one user sees it; tokens are kept as long as this object."""

    def __init__(
        self, http: httpx2.AsyncClient, *, username: str = "", password: str = "", timeout: float = _TIMEOUT_S
    ) -> None:
        self._http = http
        self._username = username
        self._password = password
        self._timeout = timeout
        self._tokens: dict[str, str] = {}

    async def digest(self, reference: Reference) -> str:
        """The digest that a tag stands for now: of the index if there is one, as nodes record it."""
        if reference.digest:
            return reference.digest
        answer = await self._ask("HEAD", reference)
        told = answer.headers.get("Docker-Content-Digest", "")
        if re.fullmatch(r"sha256:[0-9a-f]{64}", told):
            return told
        return f"sha256:{hashlib.sha256(await self._document(reference)).hexdigest()}"

    async def layers(self, reference: Reference, platform: Platform) -> tuple[str, list[Layer]]:
        """The digest of what the reference names, and the layers of the build for a platform."""
        content = await self._document(reference)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        document = oci.read_document(content)
        if oci.is_index(document):
            chosen = reference.at(oci.choose(document, platform))
            document = oci.read_document(await self._document(chosen))
        return digest, oci.layers(document)

    def authorization(self, reference: Reference) -> dict[str, str]:
        """The header that the last question to this repository needed."""
        known = self._tokens.get(reference.name)
        return {"Authorization": known} if known else {}

    async def authorize(self, reference: Reference, challenge: str) -> bool:
        """Answer a 401; False when there is nothing (more) to answer it with."""
        before = self._tokens.pop(reference.name, "")
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self._username:
            self._tokens[reference.name] = self._basic()
        elif kind.lower() == "bearer":
            self._tokens[reference.name] = f"Bearer {await self._token(reference, dict(_CHALLENGE.findall(rest)))}"
        return self._tokens.get(reference.name, before) != before

    async def _document(self, reference: Reference) -> bytes:
        content = (await self._ask("GET", reference)).content
        found = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if reference.digest and found != reference.digest:
            raise NotOci(f"The registry answered {found} when asked for {reference.digest}.")
        return content

    async def _ask(self, method: str, reference: Reference) -> _Answer:
        """For a manifest; when the registry wants to know who asks, say so and ask again."""
        answer = await self._send(method, reference)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            challenge = answer.headers.get("WWW-Authenticate", "")
            if await self.authorize(reference, challenge):
                answer = await self._send(method, reference)
        if answer.status != HTTPStatus.OK:
            raise RegistryFailed(
                f"{reference}: the registry answered {answer.status} {answer.words}".rstrip(),
                status=answer.status,
                retry_after=answer.headers.get("Retry-After", ""),
            )
        return answer

    async def _send(self, method: str, reference: Reference) -> _Answer:
        url = f"{reference.base_url}/manifests/{reference.wanted}"
        headers = {"Accept": oci.ACCEPTED, **self.authorization(reference)}
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._http.stream(
                    method, url, headers=headers, timeout=self._timeout, follow_redirects=True
                ) as response,
            ):
                content = await _read(response)
                return _Answer(response.status_code, response.reason_phrase, response.headers, content)
        except httpx2.TooManyRedirects as error:
            raise RegistryFailed(f"{reference}: {error}", status=HTTPStatus.FOUND) from error
        except (httpx2.HTTPError, TimeoutError) as error:
            raise RegistryFailed(f"{reference}: the registry cannot be reached ({_named(error)})") from error

    async def _token(self, reference: Reference, asked: dict[str, str]) -> str:
        """A bearer token from the place that the registry names, for pulling this repository only."""
        params = {"scope": asked.get("scope") or f"repository:{reference.name}:pull"}
        if asked.get("service"):
            params["service"] = asked["service"]
        headers = {"Authorization": self._basic()} if self._username else {}
        try:
            response = await self._http.get(
                asked.get("realm", ""), params=params, headers=headers, timeout=self._timeout
            )
            answer = response.json() if response.is_success else {}
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise RegistryFailed(f"The registry's token service failed: {_named(error)}") from error
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str):
            raise RegistryFailed(
                f"{reference}: the registry's token service answered {response.status_code}",
                status=response.status_code if not response.is_success else HTTPStatus.UNAUTHORIZED,
            )
        return token

    def _basic(self) -> str:
        return basic(self._username, self._password)


def basic(username: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


async def _read(response: httpx2.Response) -> bytes:
    """A manifest is small; what is not small is no manifest."""
    read = bytearray()
    async for block in response.aiter_bytes():
        read += block
        if len(read) > _LARGEST_MANIFEST:
            raise NotOci("The registry's answer is too large for a manifest.")
    return bytes(read)


def _named(error: Exception) -> str:
    return str(error) or type(error).__name__
