"""Registration: establishes the identity of a node and issues its credentials."""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from nodesmith.contracts.agent_api import RegisterRequest, RegisterResponse
from nodesmith.contracts.nats.presence import StopWhy
from nodesmith.domain.audit_change import AuditChange
from nodesmith.domain.eligibility import obstacle
from nodesmith.domain.errors import (
    IdentityInUse,
    InvalidRequest,
    NameTaken,
    NodeRemoved,
    NodesmithError,
    NotAllowed,
    NotSignedIn,
    TooManyPending,
    UnknownNode,
)
from nodesmith.domain.names import is_plain
from nodesmith.domain.node import NatsCredential, Node, NodeType
from nodesmith.domain.node import Protocol as Wire
from nodesmith.domain.token_hash import hash_token, same
from nodesmith.services.access.invites import AuditTrail, Invites, is_invite
from nodesmith.services.nodes.identity_claims import IdentityClaims, Presence
from nodesmith.services.ports import CredentialIssuer, NodeRegistry

CONNECT_TIMEOUT = timedelta(seconds=10)
"""how long a newly registered process may take to connect to NATS"""
_TRIES = 3
AUTO_APPROVE = "NODESMITH_AUTO_APPROVE"
"""the audit actor of an approval by setting"""


class Trusted(Protocol):
    """The keys that nodes trust."""

    @property
    def version(self) -> int: ...


class ReplicaCertificates(Protocol):
    """Signs the certificates that the forwarders of nodes show to gateways."""

    @property
    def ca(self) -> str: ...
    def sign_node(self, request: str, node_id: str) -> str: ...


class EndedOrders(Protocol):
    async def newest_ended(self, node_id: str) -> dict[str, int]: ...


class NatsCredentials(Protocol):
    """The NATS credentials of the nodes."""

    async def issue(self, node_id: str, credential: NatsCredential, *, now: datetime) -> bool: ...
    async def revoke_others(self, node_id: str, user: str, *, now: datetime) -> bool: ...


class Revocation(Protocol):
    """Tells the NATS server which credentials are revoked."""

    async def enforce(self) -> None: ...


@dataclass(frozen=True)
class Registration:
    """Registers nodes. The shared token only admits a node; afterwards the node acts with its own credential."""

    nodes: NodeRegistry
    claims: IdentityClaims
    presence: Presence
    invites: Invites
    trail: AuditTrail
    issuer: CredentialIssuer
    nats_credentials: NatsCredentials
    revocation: Revocation
    registration_token: str
    nats_url: str
    credential_lifetime: timedelta
    auto_approve: bool
    max_pending: int
    """limit of nodes that wait for approval, so that a holder of the shared token cannot fill the registry"""
    localai_workers: bool
    clock: Callable[[], datetime]
    trusted: Trusted
    orders: EndedOrders
    certificates: ReplicaCertificates | None = None
    """None: nodes get no certificates, and gateways reach backends without TLS"""

    async def register(self, request: RegisterRequest, *, bearer: str) -> RegisterResponse:
        """Register a new node, renew its credential, or record a new boot. Only an invite or the setting approves."""
        self._check(request)
        token = bearer or request.token
        if not is_invite(token):
            return await self._register(request, bearer, approve=self.auto_approve)
        return await self.invites.admit(request, token, self._register_invited)

    async def _register_invited(self, request: RegisterRequest, *, approve: bool) -> RegisterResponse:
        """Register with an invite, which admits like the shared token and may approve."""
        return await self._register(request, self.registration_token, approve=approve or self.auto_approve)

    async def _register(self, request: RegisterRequest, bearer: str, *, approve: bool) -> RegisterResponse:
        """Check, then write if nothing has changed since: of concurrent processes only one becomes the node."""
        for _ in range(_TRIES):
            known = await self._named(request.name)
            fresh = await self._admit(known, request, bearer)
            await self._refuse_rival(known, request, is_own=fresh is None)
            if known is None and not approve:
                await self._refuse_too_many()
            write = partial(
                self.nodes.upsert,
                request,
                now=self.clock(),
                credential_hash=hash_token(fresh) if fresh else None,
                approve=approve,
                instead_of=known.boot_id if known else "",
            )
            needs_approval = self.auto_approve and (known is None or known.approved_at is None)
            with suppress(NameTaken):
                node = await (self._approved_by_setting(request.name, write) if needs_approval else write())
                response = await self._response(node, api_token=fresh)
                return self._with_certificate(response, request.certificate_request)
        raise _name_taken(request.name)

    async def _refuse_too_many(self) -> None:
        """Refuse beyond the limit; concurrent registrations may exceed it by a few."""
        if (pending := await self.nodes.pending()) >= self.max_pending:
            raise TooManyPending(f"{pending} nodes wait for approval already.", limit=self.max_pending)

    async def _approved_by_setting(self, name: str, write: Callable[[], Awaitable[Node]]) -> Node:
        """Write with an audit entry, because the setting approved this node and not a person."""
        approval = AuditChange(
            AUTO_APPROVE, "nodes.approve", name, before={"approved_at": None}, after={"approved": True}
        )
        entry = await self.trail.begin(approval)
        try:
            node = await write()
        except NodesmithError:
            await self.trail.forget(entry)
            raise
        await self.trail.complete(entry, replace(approval, target_id=node.id))
        return node

    async def approve(self, node: str) -> RegisterResponse:
        known = await self._known(node)
        if not await self.nodes.approve(known.id, now=self.clock()):
            raise InvalidRequest(f"Node {known.name} does not wait for approval: it is {known.status}.")
        return await self._response(await self._known(known.id), api_token=None)

    async def authenticate_node(self, node: str, *, bearer: str) -> Node:
        """Authenticate a self-service call; returns the node, or raises unless the credential is that node's own.

        A LocalAI worker has only the shared token. As long as such workers are admitted, its node id, which only it
        received, identifies it.
        """
        known = await self._known(node)
        if same(hash_token(bearer), await self.nodes.credential_hash(known.id) or ""):
            return known
        is_legacy = self.localai_workers and known.protocol is Wire.LOCALAI and node == known.id
        if is_legacy and same(bearer, self.registration_token):
            return known
        raise NotSignedIn(f"This credential does not belong to node {known.name}.")

    async def _newest_orders(self, node: Node) -> dict[str, int] | None:
        """The newest ended orders, for a node whose disk was restored from a backup and lacks them."""
        return await self.orders.newest_ended(node.id) or None if node.protocol is Wire.NODESMITH else None

    async def _known(self, node: str) -> Node:
        known = await self.nodes.find(node)
        if known is None:
            raise UnknownNode(f"There is no node {node}.", node=node)
        return known

    async def _named(self, name: str) -> Node | None:
        """Find by name only, so that a name which equals another node's id does not match that node."""
        known = await self.nodes.find(name)
        return known if known is not None and known.name == name else None

    async def _admit(self, known: Node | None, request: RegisterRequest, bearer: str) -> str | None:
        """Authenticate; returns a new credential, or None when the node presented its own."""
        if known is not None and same(hash_token(bearer), await self.nodes.credential_hash(known.id) or ""):
            return None
        if why := await self.claims.why_retired(hash_token(bearer)):
            raise _retired(request.name, why)
        if not same(bearer or request.token, self.registration_token):
            raise NotSignedIn("The registration token is wrong or missing.")
        if known is not None and not await self._may_claim(known, request):
            raise _name_taken(request.name)
        return secrets.token_urlsafe(32)

    async def _may_claim(self, known: Node, request: RegisterRequest) -> bool:
        """Whether a caller with only the shared token may be that node: same machine, or the name was released."""
        if await self.nodes.credential_hash(known.id) is None:
            return True
        if known.protocol is not request.protocol:
            return False
        return (await self.nodes.machine_id(known.id)) in ("", request.machine_id)

    async def _refuse_rival(self, known: Node | None, request: RegisterRequest, *, is_own: bool) -> None:
        """Refuse another process while the registered one answers: a copied machine, or a caller that claims its boot.

        `is_own`: the caller presented the credential of the node. Boot ids are no secrets, so without it an equal one
        proves nothing; a process that lost the response to its registration has not connected yet.
        """
        if known is None or known.approved_at is None or known.left_at is not None or not known.boot_id:
            return
        is_same_boot = known.boot_id == request.boot_id
        if is_same_boot and is_own:
            return
        if await self.presence.is_alive(known.id, known.boot_id):
            await self.claims.record_rival(known.id, now=self.clock())
            raise IdentityInUse(
                f"Another process is running as node {known.name} and answers. If this machine is a copy of that one, "
                "give it another name and delete the identity.json that was copied.",
                node=known.name,
            )
        if not is_same_boot and _is_connecting(known, self.clock()):
            raise IdentityInUse(
                f"Another process just registered as node {known.name} and has not connected yet. If it is gone, "
                f"try again in {CONNECT_TIMEOUT.seconds} s. If this machine is a copy of that one, give it another "
                "name and delete the identity.json that was copied.",
                node=known.name,
            )

    async def _response(self, node: Node, *, api_token: str | None) -> RegisterResponse:
        plain = RegisterResponse(
            id=node.id,
            name=node.name,
            node_type=node.node_type,
            status=node.status,
            created_at=node.created_at,
            api_token=api_token,
            trust_version=self.trusted.version,
            newest_orders=await self._newest_orders(node),
        )
        if obstacle(node, on_drained=True) is not None:
            return plain
        key = (await self.nodes.keys_of([node.id])).get(node.id)
        if key is None or not (key.public or key.protocol is Wire.LOCALAI):
            return plain  # removed, or its name was released, since the write
        credential = self.issuer.node_credential(node.id, lifetime=self.credential_lifetime, user=key.public)
        if not await self.nats_credentials.issue(node.id, credential, now=self.clock()):
            return plain
        if key.public and await self.nats_credentials.revoke_others(node.id, key.public, now=self.clock()):
            await self.revocation.enforce()
        return plain.model_copy(
            update={
                "nats_jwt": credential.jwt,
                "nats_user_seed": credential.seed or None,
                "nats_url": self.nats_url,
                "expires_at": credential.expires_at,
            }
        )

    def _with_certificate(self, response: RegisterResponse, request: str) -> RegisterResponse:
        """Sign the node's request for its own names, if the node is admitted."""
        if self.certificates is None or not request or response.nats_jwt is None:
            return response
        certificate = self.certificates.sign_node(request, response.id)
        return response.model_copy(update={"certificate": certificate, "certificate_ca": self.certificates.ca})

    def _check(self, request: RegisterRequest) -> None:
        _check_facts(request)
        if request.protocol is Wire.LOCALAI and not self.localai_workers:
            raise NotAllowed(
                "LocalAI workers (protocol 1) are not admitted: they can neither verify orders nor sign their reports. "
                "To admit them all the same, an admin sets NODESMITH_LOCALAI_WORKERS=1 and restarts the API; "
                "docs/explanation/security.md says what is open then."
            )
        needs_key = request.protocol is not Wire.LOCALAI and request.node_type == NodeType.BACKEND
        if needs_key and not self.issuer.is_user_key(request.nats_key):
            raise InvalidRequest(
                "nats_key has to be the public NATS key that the agent made; an agent without one is too old.",
                field="nats_key",
            )


def _is_connecting(node: Node, now: datetime) -> bool:
    """Whether the node's process registered so recently that it may not have connected to NATS yet."""
    if node.boot_at is None or now - node.boot_at >= CONNECT_TIMEOUT:
        return False
    return node.last_heartbeat is None or node.last_heartbeat < node.boot_at


def _name_taken(name: str) -> NameTaken:
    return NameTaken(
        f"The name {name} belongs to another machine. Give this node another name, or, if that machine is gone, "
        f"release the name: `nodesmith nodes reset-credential {name}`.",
        node=name,
    )


def _retired(name: str, why: StopWhy) -> NodeRemoved:
    what = "was removed" if why is StopWhy.REMOVED else "lost its credential, because its name was released"
    return NodeRemoved(f"Node {name} {what} by an admin. It cannot register again by itself.", node=name, why=why)


def _check_facts(request: RegisterRequest) -> None:
    if request.node_type not in (NodeType.BACKEND, NodeType.AGENT):
        raise InvalidRequest(f"node_type must be backend or agent, not {request.node_type}.", field="node_type")
    if request.protocol is Wire.LOCALAI and request.node_type == NodeType.BACKEND and not request.address:
        raise InvalidRequest("address is required for a backend node.", field="address")
    if not request.name.strip() or not is_plain(request.name):
        raise InvalidRequest("name is blank or has a control character.", field="name")
