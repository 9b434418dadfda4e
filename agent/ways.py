"""How a host is reached: with which credential, whom it is trusted by, through whom. Asked for at use, never kept."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import structlog

from agent.failures import OperationFailed
from contracts.sources import SourceAccess
from domain.operation import Reason
from gallery.registry import basic

log = structlog.stdlib.get_logger(__name__)

Ask = Callable[[str], Awaitable[SourceAccess | None]]

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Way:
    """A client that reaches the host, and who we are there."""

    http: httpx2.AsyncClient
    username: str = ""
    password: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": basic(self.username, self.password)} if self.username else {}


class Ways:
    """Knows nothing by itself: what the admin has set for a host comes from the control plane."""

    def __init__(self, http: httpx2.AsyncClient, ask: Ask) -> None:
        self._http = http
        self._ask = ask

    @asynccontextmanager
    async def to(self, host: str) -> AsyncIterator[Way]:
        access = await self._ask(host) or SourceAccess(host=host)
        if not access.ca and not access.proxy:
            yield Way(self._http, access.username, access.password)
            return
        trust = _trust(access)
        async with httpx2.AsyncClient(verify=trust, proxy=access.proxy or None) as own:
            yield Way(own, access.username, access.password)


class ControlPlane:
    """Asks for a host's access with the node's own credential."""

    def __init__(self, http: httpx2.AsyncClient, identity: Callable[[], tuple[str, str]]) -> None:
        self._http = http
        self._identity = identity

    async def access(self, host: str) -> SourceAccess | None:
        """None when nothing is set, and when nobody answers: the source itself will say what it wants."""
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
