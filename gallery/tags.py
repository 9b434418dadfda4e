"""Resolves tags at their registries."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

import httpx2
import structlog

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.domain.errors import NodesmithError, RegistryDenied, RegistryDown, UnknownArtifact
from nodesmith.domain.source_policy import SourcePolicy
from nodesmith.gallery import oci
from nodesmith.gallery.index_reader import Access, Unreachable, client_for
from nodesmith.gallery.oci import NotOci, Reference
from nodesmith.gallery.registry import RegistryFailed, registry_for

log = structlog.stdlib.get_logger(__name__)

_TIMEOUT_S = 30.0
_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)


class RegistryTags:
    """Uses an admin's settings for the registry's host; `timeout` covers one whole lookup."""

    def __init__(self, access: Access, policy: SourcePolicy, *, timeout: float = _TIMEOUT_S) -> None:
        self._access = access
        self._policy = policy
        self._timeout = timeout

    def is_reference(self, uri: str) -> bool:
        return oci.is_reference(uri)

    async def digest(self, uri: str) -> str | None:
        """Return the digest of the tag; None if the registry does not return it."""
        try:
            return await self._ask(oci.read_reference(uri))
        except NodesmithError as error:
            log.warning("tag.unknown", reference=uri, error=error.message)
            return None

    async def pin(self, uris: Sequence[str]) -> str:
        """Return the digest from the first of these places that answers; raise the reason if none does."""
        failures: list[NodesmithError] = []
        for uri in uris:
            try:
                return await self._ask(oci.read_reference(uri))
            except (UnknownArtifact, RegistryDenied, RegistryDown) as failure:
                failures.append(failure)
        # If one place is down, the artifact cannot be reported as missing.
        chosen = next((each for each in failures if isinstance(each, RegistryDown)), failures[0])
        raise type(chosen)(" ".join(each.message for each in failures), **chosen.facts)

    async def _ask(self, reference: Reference) -> str:
        if reference.digest:
            return reference.digest
        self._policy.check_host(host_of(reference))
        try:
            access = await self._access(reference.host) or SourceAccess(host=reference.host)
            async with asyncio.timeout(self._timeout), client_for(access, self._policy) as http:
                return await registry_for(access, http, self._timeout).digest(reference)
        except RegistryFailed as error:
            raise _error_type(error)(_sentence(reference, str(error)), registry=reference.host) from error
        except NotOci as error:
            raise UnknownArtifact(_sentence(reference, str(error)), registry=reference.host) from error
        except TimeoutError as error:
            words = f"no answer within {self._timeout:g} s"
            raise RegistryDown(_sentence(reference, words), registry=reference.host) from error
        except (Unreachable, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            words = str(error) or type(error).__name__
            raise RegistryDown(_sentence(reference, words), registry=reference.host) from error


def host_of(reference: Reference) -> str:
    """Return the registry's host, without its port."""
    return httpx2.URL(reference.base_url).host


def _error_type(error: RegistryFailed) -> type[NodesmithError]:
    """Map the failure to an error; without a status the registry could not be reached."""
    if error.status in _DENIED:
        return RegistryDenied
    is_down = error.status in (0, HTTPStatus.TOO_MANY_REQUESTS) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return RegistryDown if is_down else UnknownArtifact


def _sentence(reference: Reference, why: str) -> str:
    why = why.removeprefix(f"{reference}: ").rstrip(".")
    return f"The registry {reference.host} did not resolve {reference}: {why}."
