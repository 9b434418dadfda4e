"""Credentials, CA and proxy for a source host; fetched from the control plane at each use, never stored."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import structlog

from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.domain.errors import SourceNotAllowed
from nodesmith.domain.operation import Reason
from nodesmith.domain.source_policy import SourcePolicy
from nodesmith.gallery.registry import basic
from nodesmith.gallery.source_http import source_client

log = structlog.stdlib.get_logger(__name__)

AccessLookup = Callable[[str], Awaitable[SourceAccess | None]]

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class HostClient:
    """An HTTP client for one host, with the node's credential there."""

    http: httpx2.AsyncClient
    username: str = ""
    password: str = ""
    realms: Collection[str] = ()
    """hosts of token services that may receive the password too"""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": basic(self.username, self.password)} if self.username else {}


class HostAccess:
    """Opens clients for hosts with the access that an admin configured at the control plane."""

    def __init__(self, lookup: AccessLookup, policy: SourcePolicy, trust: ssl.SSLContext | None = None) -> None:
        self._lookup = lookup
        self._policy = policy
        self._trust = trust
        self._http: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    @asynccontextmanager
    async def to(self, host: str) -> AsyncIterator[HostClient]:
        """Yield a client for the host; raises before any request if the policy forbids the host."""
        try:
            self._policy.check_host(httpx2.URL(f"//{host}").host)
            access = await self._lookup(host) or SourceAccess(host=host)
            async with self._client(access) as http:
                yield HostClient(http, access.username, access.password, access.realms)
        except SourceNotAllowed as error:
            message = f"This node may not fetch from {host}: {error.message} See NODESMITH_AGENT_SOURCE_NETWORKS."
            raise OperationFailed(Reason.REFUSED_BY_NODE, message) from error

    @asynccontextmanager
    async def _client(self, access: SourceAccess) -> AsyncIterator[httpx2.AsyncClient]:
        if access.ca or access.proxy:
            async with source_client(self._policy, verify=_trust(access), proxy=access.proxy) as own:
                yield own
        else:
            self._http = self._http or source_client(self._policy, verify=self._trust or True)
            yield self._http


class ControlPlane:
    """Requests a host's access from the control plane with the node's own credential."""

    def __init__(self, http: httpx2.AsyncClient, identity: Callable[[], tuple[str, str]]) -> None:
        self._http = http
        self._identity = identity

    async def access(self, host: str) -> SourceAccess | None:
        """Return None when nothing is configured or the control plane is unreachable: the source then decides."""
        node_id, credential = self._identity()
        try:
            response = await self._http.get(
                f"/api/node/{node_id}/sources",
                params={"host": host},
                headers={"Authorization": f"Bearer {credential}"},
                timeout=_TIMEOUT_S,
            )
            return (
                SourceAccess.model_validate_json(response.content) if response.status_code == httpx2.codes.OK else None
            )
        except (httpx2.HTTPError, ValueError) as error:
            log.warning("source.access_unknown", host=host, error=type(error).__name__)
            return None


def _trust(access: SourceAccess) -> ssl.SSLContext:
    trust = ssl.create_default_context()
    if access.ca:
        try:
            trust.load_verify_locations(cadata=access.ca)
        except ssl.SSLError as error:
            raise OperationFailed(
                Reason.DOWNLOAD_FAILED, f"The certificates set for {access.host} cannot be read: {error.reason}"
            ) from error
    return trust
