"""What tags stand for at their registries now."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

import httpx2
import structlog

from contracts.sources import SourceAccess
from domain.errors import NodesmithError, RegistryDenied, RegistryDown, UnknownArtifact
from gallery import oci
from gallery.fetching import Access, Unreachable, client_for
from gallery.oci import NotOci, Reference
from gallery.registry import Registry, RegistryFailed

log = structlog.stdlib.get_logger(__name__)

_TIMEOUT_S = 30.0
_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)


class RegistryTags:
    """Asks with what an admin has set for the registry's host; `timeout` is for the whole of one question."""

    def __init__(self, access: Access, *, timeout: float = _TIMEOUT_S) -> None:
        self._access = access
        self._timeout = timeout

    def is_reference(self, uri: str) -> bool:
        return oci.is_reference(uri)

    async def digest(self, uri: str) -> str | None:
        """The digest of the tag; None when the registry does not tell it."""
        try:
            return await self._ask(oci.read_reference(uri))
        except NodesmithError as error:
            log.warning("tag.unknown", reference=uri, error=error.message)
            return None

    async def pin(self, uris: Sequence[str]) -> str:
        """The digest as the first of these places tells it that answers; raises what keeps all from telling."""
        failures: list[NodesmithError] = []
        for uri in uris:
            try:
                return await self._ask(oci.read_reference(uri))
            except (UnknownArtifact, RegistryDenied, RegistryDown) as failure:
                failures.append(failure)
        # Where one place is down, nobody can say that the artifact is nowhere.
        told = next((each for each in failures if isinstance(each, RegistryDown)), failures[0])
        raise type(told)(" ".join(each.message for each in failures), **told.facts)

    async def _ask(self, reference: Reference) -> str:
        if reference.digest:
            return reference.digest
        try:
            access = await self._access(reference.host) or SourceAccess(host=reference.host)
            async with asyncio.timeout(self._timeout), client_for(access) as http:
                registry = Registry(http, username=access.username, password=access.password, timeout=self._timeout)
                return await registry.digest(reference)
        except RegistryFailed as error:
            raise _meant(error)(_sentence(reference, str(error)), registry=reference.host) from error
        except NotOci as error:
            raise UnknownArtifact(_sentence(reference, str(error)), registry=reference.host) from error
        except TimeoutError as error:
            words = f"no answer within {self._timeout:g} s"
            raise RegistryDown(_sentence(reference, words), registry=reference.host) from error
        except (Unreachable, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            words = str(error) or type(error).__name__
            raise RegistryDown(_sentence(reference, words), registry=reference.host) from error


def _meant(error: RegistryFailed) -> type[NodesmithError]:
    """Without a status it could not be reached."""
    if error.status in _DENIED:
        return RegistryDenied
    is_down = error.status in (0, HTTPStatus.TOO_MANY_REQUESTS) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return RegistryDown if is_down else UnknownArtifact


def _sentence(reference: Reference, why: str) -> str:
    why = why.removeprefix(f"{reference}: ").rstrip(".")
    return f"The registry {reference.host} does not say what {reference} stands for: {why}."
