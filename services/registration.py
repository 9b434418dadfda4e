"""Registration: who a node is, and what it gets to speak with."""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from contracts.messages import StopWhy
from contracts.node_http import NodeView, RegisterRequest, RegisterResponse
from domain.change import Change
from domain.errors import (
    IdentityInUse,
    InvalidRequest,
    NameTaken,
    NodeRemoved,
    NodesmithError,
    NotSignedIn,
    UnknownNode,
)
from domain.node import NatsCredential, NodeStatus, NodeType
from domain.node import Protocol as Wire
from domain.secrets import hash_token, same
from services.identity import Claims, Presence
from services.invites import Invites, Trail, is_invite
from services.ports import CredentialIssuer, NodeRegistry

LINKS_WITHIN = timedelta(seconds=10)
"""how long a process that has just registered may take until it is heard on the bus"""
_TRIES = 3
AUTO_APPROVE = "NODESMITH_AUTO_APPROVE"
"""the actor of an approval that a setting gave"""


class Voices(Protocol):
    """The credentials for NATS that nodes have."""

    async def give(self, node_id: str, credential: NatsCredential, *, now: datetime) -> bool: ...


@dataclass(frozen=True)
class Registration:
    """The shared token only admits; a node's own credential acts, for itself."""

    nodes: NodeRegistry
    claims: Claims
    presence: Presence
    invites: Invites
    trail: Trail
    issuer: CredentialIssuer
    voices: Voices
    registration_token: str
    nats_url: str
    credential_lifetime: timedelta
    auto_approve: bool
    clock: Callable[[], datetime]

    async def register(self, request: RegisterRequest, *, bearer: str) -> RegisterResponse:
        """A new node, a renewal of its credential, or a new boot. Only an invite that carries it gives an approval."""
        _check(request)
        token = bearer or request.token
        if not is_invite(token):
            return await self._register(request, bearer, approve=self.auto_approve)
        return await self.invites.admit(request, token, self._register_invited)

    async def _register_invited(self, request: RegisterRequest, *, approve: bool) -> RegisterResponse:
        """An invite admits as the shared token does, and may approve."""
        return await self._register(request, self.registration_token, approve=approve or self.auto_approve)

    async def _register(self, request: RegisterRequest, bearer: str, *, approve: bool) -> RegisterResponse:
        """Looked at, then written if it still is so: of processes that ask at the same instant one is the node."""
        for _ in range(_TRIES):
            known = await self._named(request.name)
            fresh = await self._admit(known, request, bearer)
            await self._refuse_rival(known, request)
            write = partial(
                self.nodes.upsert,
                request,
                now=self.clock(),
                credential_hash=hash_token(fresh) if fresh else None,
                approve=approve,
                instead_of=known.boot_id if known else "",
            )
            is_unseen = self.auto_approve and (known is None or known.approved_at is None)
            with suppress(NameTaken):
                node = await (self._approved_by_setting(request.name, write) if is_unseen else write())
                return await self._response(node, api_token=fresh)
        raise _name_taken(request.name)

    async def _approved_by_setting(self, name: str, write: Callable[[], Awaitable[NodeView]]) -> NodeView:
        """Nobody looked at this node, so the audit trail tells who it was that let it in."""
        approval = Change(AUTO_APPROVE, "nodes.approve", name, before={"approved_at": None}, after={"approved": True})
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

    async def speaks_for(self, node: str, *, bearer: str) -> NodeView:
        """The node behind a self-service call; raises unless the credential is that node's own.

        A LocalAI worker has only the shared token. It is believed by the id that it alone was told.
        """
        known = await self._known(node)
        if same(hash_token(bearer), await self.nodes.credential_hash(known.id) or ""):
            return known
        is_legacy = known.protocol is Wire.LOCALAI and node == known.id
        if is_legacy and same(bearer, self.registration_token):
            return known
        raise NotSignedIn(f"This credential does not speak for node {known.name}.")

    async def _known(self, node: str) -> NodeView:
        known = await self.nodes.find(node)
        if known is None:
            raise UnknownNode(f"There is no node {node}.", node=node)
        return known

    async def _named(self, name: str) -> NodeView | None:
        """By name only: an id that somebody chose as a name leads to nobody else."""
        known = await self.nodes.find(name)
        return known if known is not None and known.name == name else None

    async def _admit(self, known: NodeView | None, request: RegisterRequest, bearer: str) -> str | None:
        """Return a fresh credential when one is due, None when the node showed its own."""
        if known is not None and same(hash_token(bearer), await self.nodes.credential_hash(known.id) or ""):
            return None
        if why := await self.claims.why_retired(hash_token(bearer)):
            raise _retired(request.name, why)
        if not same(bearer or request.token, self.registration_token):
            raise NotSignedIn("The registration token is wrong or missing.")
        if known is not None and not await self._may_be(known, request):
            raise _name_taken(request.name)
        return secrets.token_urlsafe(32)

    async def _may_be(self, known: NodeView, request: RegisterRequest) -> bool:
        """May whoever shows only the shared token be that node? Its machine may, and a name that was given free."""
        if await self.nodes.credential_hash(known.id) is None:
            return True
        if known.protocol is not request.protocol:
            return False
        return (await self.nodes.machine_id(known.id)) in ("", request.machine_id)

    async def _refuse_rival(self, known: NodeView | None, request: RegisterRequest) -> None:
        """A copy of a machine has its name, its id and its credential: only that the first still answers tells."""
        if known is None or known.approved_at is None or known.left_at is not None:
            return
        if not known.boot_id or not request.boot_id or known.boot_id == request.boot_id:
            return
        if await self.presence.is_there(known.id, known.boot_id):
            await self.claims.rival(known.id, now=self.clock())
            raise IdentityInUse(
                f"Another process is node {known.name} already, and it answers. If this machine is a copy of that one, "
                "give it another name and delete the identity.json that was copied.",
                node=known.name,
            )
        if _is_on_its_way(known, self.clock()):
            raise IdentityInUse(
                f"Another process registered as node {known.name} a moment ago and was not heard yet. If it is gone, "
                f"ask again in {LINKS_WITHIN.seconds} s. If this machine is a copy of that one, give it another name "
                "and delete the identity.json that was copied.",
                node=known.name,
            )

    async def _response(self, node: NodeView, *, api_token: str | None) -> RegisterResponse:
        plain = RegisterResponse(
            id=node.id,
            name=node.name,
            node_type=node.node_type,
            status=node.status,
            created_at=node.created_at,
            api_token=api_token,
        )
        if node.status is NodeStatus.PENDING or node.node_type is not NodeType.BACKEND:
            return plain
        credential = self.issuer.node_credential(node.id, protocol=node.protocol, lifetime=self.credential_lifetime)
        if not await self.voices.give(node.id, credential, now=self.clock()):
            return plain  # removed, or its name was given free, at this very moment
        return plain.model_copy(
            update={
                "nats_jwt": credential.jwt,
                "nats_user_seed": credential.seed,
                "nats_url": self.nats_url,
                "expires_at": credential.expires_at,
            }
        )


def _is_on_its_way(node: NodeView, now: datetime) -> bool:
    """The process that is the node has just registered: on the bus it cannot answer yet."""
    if node.boot_at is None or now - node.boot_at >= LINKS_WITHIN:
        return False
    return node.last_heartbeat is None or node.last_heartbeat < node.boot_at


def _name_taken(name: str) -> NameTaken:
    return NameTaken(
        f"The name {name} belongs to another machine. Give this node another name, or, if that machine is gone, "
        f"give the name free: `nodesmith nodes reset-credential {name}`.",
        node=name,
    )


def _retired(name: str, why: StopWhy) -> NodeRemoved:
    what = "was removed" if why is StopWhy.REMOVED else "lost its credential, because its name was given free,"
    return NodeRemoved(f"Node {name} {what} by an admin. It does not come back by itself.", node=name)


def _check(request: RegisterRequest) -> None:
    if request.node_type not in (NodeType.BACKEND, NodeType.AGENT):
        raise InvalidRequest(f"node_type must be backend or agent, not {request.node_type}.", field="node_type")
    if request.protocol is Wire.LOCALAI and request.node_type == NodeType.BACKEND and not request.address:
        raise InvalidRequest("address is required for a backend node.", field="address")
    if not request.name.strip() or not request.name.isprintable():
        raise InvalidRequest("name is blank or has a control character.", field="name")
