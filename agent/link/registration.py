"""Registration over HTTP: repeat until approved, then renew before the credential expires."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Protocol

import httpx2
import structlog

from nodesmith.agent.link.node_identity import Identity
from nodesmith.agent.link.pinned_trust import PinnedTrust
from nodesmith.bus.connection import Bus
from nodesmith.bus.nkeys import KeyPair, Role
from nodesmith.contracts.agent_api import RegisterRequest, RegisterResponse
from nodesmith.contracts.nats.presence import StopWhy
from nodesmith.domain.node import NatsCredential
from nodesmith.domain.node import Protocol as Wire
from nodesmith.runtime.retry_after import retry_after_s
from nodesmith.runtime.trust_lists import NotTrusted

RaiseFloors = Callable[[Mapping[str, int]], Awaitable[None]]

log = structlog.stdlib.get_logger(__name__)

FIRST_WAIT_S = 0.3
APPROVAL_POLL_S = 2.0
"""interval of registration while the node waits for approval"""
MAX_WAIT_S = 30.0
MAX_RETRY_AFTER_S = 300.0
"""upper bound on the control plane's Retry-After"""
_TIMEOUT_S = 10.0
_BOOT_TIMEOUT_S = 4.0
_DEREGISTER_TIMEOUT_S = 2.0


class NotRegistered(Exception):
    """The control plane did not register this node."""

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = min(retry_after_s or 0.0, MAX_RETRY_AFTER_S)
        """the control plane's requested delay before the next attempt"""


class CredentialRefused(NotRegistered):
    """The control plane rejected this credential."""


class Refused(NotRegistered):
    """The control plane rejected this node: its name or identity belongs to another machine."""


class NotTrustworthy(NotRegistered):
    """The server could not be verified as this node's control plane; no credential was sent."""


class Removed(NotRegistered):
    """An admin removed this node, or released its name."""

    def __init__(self, message: str, why: StopWhy = StopWhy.REMOVED) -> None:
        super().__init__(message)
        self.why = why


class Certificate(Protocol):
    """The certificate of this node's forwarder; blocking."""

    def request(self) -> str: ...
    def store(self, certificate: str, ca: str) -> None: ...
    def forget(self) -> None: ...
    def renewal_due(self) -> datetime | None: ...


class IdentityStore(Protocol):
    def load(self) -> Identity | None: ...
    def save(self, identity: Identity) -> None: ...
    def forget(self) -> None: ...


async def register(
    http: httpx2.AsyncClient, request: RegisterRequest, *, bearer: str, trust: PinnedTrust | None = None
) -> RegisterResponse:
    """Send one request; raises `NotRegistered` with the control plane's message. Sets the clock of `trust`."""
    try:
        response = await http.post(
            "/api/node/register",
            content=request.model_dump_json(exclude_none=True, exclude_defaults=True),
            headers={"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"},
            timeout=_TIMEOUT_S,
        )
    except httpx2.HTTPError as error:
        raise NotRegistered(f"The control plane does not answer: {error!r}") from error
    if trust is not None:
        trust.set_clock(response.headers.get("Date"))
    if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise CredentialRefused(_error_text(response))
    if response.status_code == HTTPStatus.GONE:
        raise Removed(_error_text(response), _why_removed(response))
    if response.status_code == HTTPStatus.CONFLICT:
        raise Refused(_error_text(response))
    if not response.is_success:
        raise NotRegistered(_error_text(response), retry_after_s=retry_after_s(response.headers.get("Retry-After", "")))
    return RegisterResponse.model_validate_json(response.content)


def _why_removed(response: httpx2.Response) -> StopWhy:
    try:
        is_reset = response.json().get("why") == StopWhy.CREDENTIAL_RESET
    except (ValueError, AttributeError):
        is_reset = False
    return StopWhy.CREDENTIAL_RESET if is_reset else StopWhy.REMOVED


def _error_text(response: httpx2.Response) -> str:
    try:
        return f"{response.status_code}: {response.json()['detail']}"
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code}: {response.text[:200]}"


class Registrar:
    """Keeps this node registered; `identity` always holds the latest one."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        store: IdentityStore,
        *,
        token: str,
        request: Callable[[], RegisterRequest],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        trust: PinnedTrust | None = None,
        raise_floors: RaiseFloors | None = None,
        certificate: Certificate | None = None,
        on_certificate: Callable[[], None] = lambda: None,
    ) -> None:
        """`trust`: the keys whose orders this node accepts; None for a LocalAI worker, which verifies no orders."""
        self._certificate = certificate
        self._on_certificate = on_certificate
        self._trust = trust
        self._raise_floors = raise_floors
        self._http = http
        self._pause = pause
        self._store = store
        self._token = token
        self._request = request
        self.identity = store.load()
        self._seed = (self.identity.nats_user_seed if self.identity else "") or _new_seed()

    def nats_credential(self) -> NatsCredential:
        """Return the latest credential; the bus calls this at each reconnect."""
        if self.identity is None:
            raise NotRegistered
        return self.identity.nats_credential()

    async def admit(self) -> tuple[Identity, bool]:
        """Return the identity, and whether the control plane has just confirmed it.

        The API may be down while NATS is up, so an unexpired stored credential is enough to start.
        """
        kept = self.identity
        if kept is None or not kept.is_admitted(_now()):
            return await self.register_until_admitted(), True
        try:
            async with asyncio.timeout(_BOOT_TIMEOUT_S):
                fresh = await self.register_once()
        except (Refused, Removed) as error:
            log.warning("registration.refused", error=str(error))
            return await self.register_until_admitted(), True
        except (NotRegistered, TimeoutError) as error:
            log.warning("registration.unavailable", error=str(error))
            return kept, False
        return (fresh, True) if fresh.is_admitted(_now()) else (await self.register_until_admitted(), True)

    async def register_until_admitted(self) -> Identity:
        """Register until admitted, with back-off; only `Removed` is raised."""
        wait = FIRST_WAIT_S
        while True:
            longest, asked_to_wait = MAX_WAIT_S, 0.0
            try:
                identity = await self.register_once()
                if identity.is_admitted(_now()):
                    return identity
                log.info("registration.pending", node_id=identity.node_id)
                longest = APPROVAL_POLL_S
            except Removed:
                raise
            except NotRegistered as error:
                asked_to_wait = error.retry_after_s
                log.warning("registration.failed", error=str(error), again_in_s=max(wait, asked_to_wait))
            await self._pause(max(wait, asked_to_wait))
            wait = min(wait * 1.5, longest)

    async def wait_for_confirmation(self) -> bool:
        """Retry until the control plane answers; return whether it admits this node."""
        while True:
            try:
                return (await self.register_once()).is_admitted(_now())
            except (Refused, Removed) as error:
                log.warning("registration.refused", error=str(error))
                return False
            except NotRegistered as error:
                log.warning("registration.unavailable", error=str(error))
                await self._pause(max(FIRST_WAIT_S, error.retry_after_s))

    async def is_still_registered_as(self, identity: Identity) -> bool:
        """Retry until the control plane answers; return whether this node still has that id. Raises `Removed`."""
        while True:
            await self._pause(APPROVAL_POLL_S)
            try:
                fresh = await self.register_once()
            except Removed:
                raise
            except Refused as error:
                log.warning("registration.refused", error=str(error))
                return False
            except NotRegistered as error:
                log.warning("registration.unavailable", error=str(error))
            else:
                return fresh.is_admitted(_now()) and fresh.node_id == identity.node_id

    async def register_once(self) -> Identity:
        """Register with the node's own credential; use the shared token if the node has none or it was rejected."""
        await self._ensure_trusted()
        seed = self._seed
        own = self.identity.api_token if self.identity is not None else ""
        try:
            response = await self._register(seed, bearer=own or self._token)
        except CredentialRefused:
            if not own:
                raise
            seed = _new_seed()  # the identity was rejected, so its key must not be used again
            response = await self._register(seed, bearer=self._token)
        await self._apply_updates(response)
        known = self.identity or Identity(node_id=response.id, api_token="", issued_at=_now())
        self.identity, self._seed = known.updated_from(response, _now(), seed), seed
        self._store.save(self.identity)
        await self._keep_certificate(response)
        return self.identity

    async def _register(self, seed: str, *, bearer: str) -> RegisterResponse:
        """Add this node's public key; a LocalAI worker sends none and receives a key."""
        request = self._request()
        if request.protocol is Wire.NODESMITH:
            request = request.model_copy(update={"nats_key": KeyPair.from_seed(seed).public})
        if self._certificate is not None:
            wanted = await asyncio.to_thread(self._certificate.request)
            request = request.model_copy(update={"certificate_request": wanted})
        return await register(self._http, request, bearer=bearer, trust=self._trust)

    async def _ensure_trusted(self) -> None:
        """Pin the control plane's trust list before any secret is sent to it."""
        if self._trust is None or self._trust.version:
            return
        try:
            await self._trust.refresh()
        except NotTrusted as error:
            raise NotTrustworthy(str(error)) from error

    async def _apply_updates(self, response: RegisterResponse) -> None:
        """Fetch newer keys and raise the order floors; the pinned list is only advanced, never replaced."""
        if self._trust is not None and response.trust_version > self._trust.version:
            try:
                await self._trust.refresh()
            except NotTrusted as error:
                log.warning("trust.refresh_failed", error=str(error))
        if self._raise_floors is not None and response.newest_orders:
            await self._raise_floors(response.newest_orders)

    async def _keep_certificate(self, response: RegisterResponse) -> None:
        """Store the certificate; delete the old one if the control plane admits this node and signs no more."""
        if self._certificate is None or response.nats_jwt is None:
            return
        if response.certificate and response.certificate_ca:
            await asyncio.to_thread(self._certificate.store, response.certificate, response.certificate_ca)
        else:
            await asyncio.to_thread(self._certificate.forget)
        self._on_certificate()

    def _renewal_due(self, identity: Identity) -> datetime:
        due = self._certificate.renewal_due() if self._certificate is not None else None
        return min(identity.renewal_due(), due) if due is not None else identity.renewal_due()

    async def deregister(self, boot_id: str) -> None:
        """Tell the control plane that this node leaves; without it, missing heartbeats have the same effect."""
        if self.identity is None:
            return
        headers = {"Authorization": f"Bearer {self.identity.api_token}"}
        try:
            response = await self._http.post(
                f"/api/node/{self.identity.node_id}/deregister",
                json={"boot_id": boot_id},
                headers=headers,
                timeout=_DEREGISTER_TIMEOUT_S,
            )
            response.raise_for_status()
        except httpx2.HTTPError as error:
            log.warning("deregister.failed", error=repr(error))

    def forget(self) -> None:
        """Delete the identity and the key, which the control plane revoked with the credential."""
        self.identity = None
        self._seed = _new_seed()
        self._store.forget()

    async def keep_credential_valid(self, bus: Bus, *, at_once: bool = False) -> None:
        """Renew the credential before it expires or when it is refused; returns when the node id changed.

        `at_once`: register immediately, because the control plane does not know this boot yet.
        """
        began_as = self.identity
        while began_as is not None and self.identity is not None:
            if not at_once:
                await self._wait_until_renewal(self.identity, bus)
            at_once = False
            if (await self.register_until_admitted()).node_id != began_as.node_id:
                return
            await bus.renew()

    async def _wait_until_renewal(self, identity: Identity, bus: Bus) -> None:
        """Wait for the renewal time or a refusal; a fresh credential that is refused is not replaced immediately."""
        refusable_in = max((identity.issued_at - _now()).total_seconds() + MAX_WAIT_S, 0.0)
        due_in = max((self._renewal_due(identity) - _now()).total_seconds(), 1.0)
        try:
            async with asyncio.timeout(due_in):
                await bus.refused.wait()
                await asyncio.sleep(refusable_in)
        except TimeoutError:
            return
        log.warning("registration.credential_refused", node_id=identity.node_id)


def _new_seed() -> str:
    return KeyPair.create(Role.USER).seed


def _now() -> datetime:
    return datetime.now(UTC)
