"""Registration over HTTP: ask until approved, then renew before the credential ends."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Protocol

import httpx2
import structlog

from agent.identity import Identity
from bus.connection import Bus
from contracts.node_http import RegisterRequest, RegisterResponse
from domain.node import NatsCredential

log = structlog.stdlib.get_logger(__name__)

FIRST_WAIT_S = 0.3
ASK_AGAIN_S = 2.0
"""while nobody has approved the node"""
LONGEST_WAIT_S = 30.0
_TIMEOUT_S = 10.0
_BOOT_PATIENCE_S = 4.0
_LEAVE_TIMEOUT_S = 2.0


class NotRegistered(Exception):
    """The control plane did not register this node."""


class CredentialRefused(NotRegistered):
    """The control plane does not take this credential."""


class Refused(NotRegistered):
    """The control plane answered, and will not have this node now: the name or the identity is another's."""


class Removed(NotRegistered):
    """The control plane says that this node was removed."""


class IdentityStore(Protocol):
    def load(self) -> Identity | None: ...
    def save(self, identity: Identity) -> None: ...
    def forget(self) -> None: ...


async def register(http: httpx2.AsyncClient, request: RegisterRequest, *, bearer: str) -> RegisterResponse:
    """One call; raises `NotRegistered` with the control plane's own sentence."""
    try:
        response = await http.post(
            "/api/node/register",
            content=request.model_dump_json(exclude_none=True, exclude_defaults=True),
            headers={"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"},
            timeout=_TIMEOUT_S,
        )
    except httpx2.HTTPError as error:
        raise NotRegistered(f"The control plane does not answer: {error!r}") from error
    if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise CredentialRefused(_sentence(response))
    if response.status_code == HTTPStatus.GONE:
        raise Removed(_sentence(response))
    if response.status_code == HTTPStatus.CONFLICT:
        raise Refused(_sentence(response))
    if not response.is_success:
        raise NotRegistered(_sentence(response))
    return RegisterResponse.model_validate_json(response.content)


def _sentence(response: httpx2.Response) -> str:
    try:
        return f"{response.status_code}: {response.json()['detail']}"
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code}: {response.text[:200]}"


class Registrar:
    """Keeps this node registered; `identity` is always the newest one."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        store: IdentityStore,
        *,
        token: str,
        request: Callable[[], RegisterRequest],
    ) -> None:
        self._http = http
        self._store = store
        self._token = token
        self._request = request
        self.identity = store.load()

    def nats_credential(self) -> NatsCredential:
        """The newest one; the bus asks for it at each reconnect."""
        if self.identity is None:
            raise NotRegistered
        return self.identity.nats_credential()

    async def admitted(self) -> tuple[Identity, bool]:
        """Who we are, and whether the control plane has said so just now.

        It may be down while NATS is up: a kept credential that still lives is enough to begin with.
        """
        kept = self.identity
        if kept is None or not kept.is_admitted(_now()):
            return await self.ask_until_admitted(), True
        try:
            async with asyncio.timeout(_BOOT_PATIENCE_S):
                fresh = await self.ask_once()
        except (Refused, Removed) as error:
            log.warning("registration.refused", error=str(error))
            return await self.ask_until_admitted(), True
        except (NotRegistered, TimeoutError) as error:
            log.warning("registration.later", error=str(error))
            return kept, False
        return (fresh, True) if fresh.is_admitted(_now()) else (await self.ask_until_admitted(), True)

    async def ask_until_admitted(self) -> Identity:
        """Ask again and again; only `Removed` is an answer that ends it."""
        wait = FIRST_WAIT_S
        while True:
            longest = LONGEST_WAIT_S
            try:
                identity = await self.ask_once()
                if identity.is_admitted(_now()):
                    return identity
                log.info("registration.pending", node_id=identity.node_id)
                longest = ASK_AGAIN_S
            except Removed:
                raise
            except NotRegistered as error:
                log.warning("registration.failed", error=str(error), again_in_s=wait)
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, longest)

    async def confirmed(self) -> bool:
        """As soon as the control plane answers: does it take us for the node?"""
        while True:
            try:
                return (await self.ask_once()).is_admitted(_now())
            except (Refused, Removed) as error:
                log.warning("registration.refused", error=str(error))
                return False
            except NotRegistered as error:
                log.warning("registration.later", error=str(error))
            await asyncio.sleep(FIRST_WAIT_S)

    async def ask_once(self) -> Identity:
        """Register with the node's own credential; the shared token is for those who have none (any more)."""
        request = self._request()
        own = self.identity.api_token if self.identity is not None else ""
        try:
            response = await register(self._http, request, bearer=own or self._token)
        except CredentialRefused:
            if not own:
                raise
            response = await register(self._http, request, bearer=self._token)
        known = self.identity or Identity(node_id=response.id, api_token="", issued_at=_now())
        self.identity = known.after(response, _now())
        self._store.save(self.identity)
        return self.identity

    async def leave(self, boot_id: str) -> None:
        """Tell the control plane that this node goes; it finds out by itself if it does not hear us."""
        if self.identity is None:
            return
        headers = {"Authorization": f"Bearer {self.identity.api_token}"}
        try:
            response = await self._http.post(
                f"/api/node/{self.identity.node_id}/deregister",
                json={"boot_id": boot_id},
                headers=headers,
                timeout=_LEAVE_TIMEOUT_S,
            )
            response.raise_for_status()
        except httpx2.HTTPError as error:
            log.warning("leave.not_told", error=repr(error))

    def forget(self) -> None:
        """This node is nobody any more."""
        self.identity = None
        self._store.forget()

    async def keep_linked(self, bus: Bus, *, at_once: bool = False) -> None:
        """Renew the credential before it ends or once it is refused; returns when we are known under another id.

        `at_once` when the control plane does not know of this boot yet.
        """
        began_as = self.identity
        while began_as is not None and self.identity is not None:
            if not at_once:
                await self._until_due(self.identity, bus)
            at_once = False
            if (await self.ask_until_admitted()).node_id != began_as.node_id:
                return
            await bus.renew()

    async def _until_due(self, identity: Identity, bus: Bus) -> None:
        """A credential that was refused although it is new helps nobody who asks for another one at once."""
        refusable_in = max((identity.issued_at - _now()).total_seconds() + LONGEST_WAIT_S, 0.0)
        due_in = max((identity.renewal_due() - _now()).total_seconds(), 1.0)
        try:
            async with asyncio.timeout(due_in):
                await bus.refused.wait()
                await asyncio.sleep(refusable_in)
        except TimeoutError:
            return
        log.warning("registration.credential_refused", node_id=identity.node_id)


def _now() -> datetime:
    return datetime.now(UTC)
