"""Registration: who a node is, and what it gets to speak with."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from contracts.http import NodeView, RegisterRequest, RegisterResponse
from domain.errors import InvalidRequest, NameTaken, NotSignedIn, UnknownNode
from domain.node import NodeStatus, NodeType, Protocol
from services.ports import CredentialIssuer, NodeRegistry


@dataclass(frozen=True)
class Registration:
    """The shared token only admits; a node's own credential acts, for itself."""

    nodes: NodeRegistry
    issuer: CredentialIssuer
    registration_token: str
    nats_url: str
    credential_lifetime: timedelta
    auto_approve: bool
    clock: Callable[[], datetime]

    async def register(self, request: RegisterRequest, *, bearer: str) -> RegisterResponse:
        """A new node, a renewal of its credential, or a new boot: an approval is never given or lost here."""
        _check(request)
        known = await self.nodes.find(request.name)
        fresh = await self._admit(known, request, bearer)
        node = await self.nodes.upsert(
            request,
            now=self.clock(),
            credential_hash=hash_token(fresh) if fresh else None,
            approve=self.auto_approve,
        )
        return self._response(node, api_token=fresh)

    async def approve(self, node: str) -> RegisterResponse:
        known = await self._known(node)
        if not await self.nodes.approve(known.id, now=self.clock()):
            raise InvalidRequest(f"Node {known.name} does not wait for approval: it is {known.status}.")
        return self._response(await self._known(known.id), api_token=None)

    async def speaks_for(self, node: str, *, bearer: str) -> NodeView:
        """The node behind a self-service call; raises unless the credential is that node's own."""
        known = await self._known(node)
        if _same(hash_token(bearer), await self.nodes.credential_hash(known.id) or ""):
            return known
        if known.protocol is Protocol.LOCALAI and _same(bearer, self.registration_token):
            return known
        raise NotSignedIn(f"This credential does not speak for node {known.name}.")

    async def _known(self, node: str) -> NodeView:
        known = await self.nodes.find(node)
        if known is None:
            raise UnknownNode(f"There is no node {node}.", node=node)
        return known

    async def _admit(self, known: NodeView | None, request: RegisterRequest, bearer: str) -> str | None:
        """Return a fresh credential when one is due, None when the node showed its own."""
        if known is not None and _same(hash_token(bearer), await self.nodes.credential_hash(known.id) or ""):
            return None
        if not _same(bearer or request.token, self.registration_token):
            raise NotSignedIn("The registration token is wrong or missing.")
        if known is not None and request.protocol is not Protocol.LOCALAI:
            held_by = await self.nodes.machine_id(known.id)
            if held_by and held_by != request.machine_id:
                raise NameTaken(
                    f"The name {request.name} belongs to another machine. "
                    "Give this node another name, or reset the credential of the old one.",
                    node=request.name,
                )
        return secrets.token_urlsafe(32)

    def _response(self, node: NodeView, *, api_token: str | None) -> RegisterResponse:
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
        return plain.model_copy(
            update={
                "nats_jwt": credential.jwt,
                "nats_user_seed": credential.seed,
                "nats_url": self.nats_url,
                "expires_at": credential.expires_at,
            }
        )


def hash_token(token: str) -> str:
    """Tokens are 256 random bits, so one round of SHA-256 is enough to keep them out of the table."""
    return hashlib.sha256(token.encode()).hexdigest()


def _same(shown: str, kept: str) -> bool:
    return bool(kept) and hmac.compare_digest(shown.encode(), kept.encode())


def _check(request: RegisterRequest) -> None:
    if request.node_type not in (NodeType.BACKEND, NodeType.AGENT):
        raise InvalidRequest(f"node_type must be backend or agent, not {request.node_type}.", field="node_type")
    if request.protocol is Protocol.LOCALAI and request.node_type == NodeType.BACKEND and not request.address:
        raise InvalidRequest("address is required for a backend node.", field="address")
    if any(character in request.name for character in "\r\n\0"):
        raise InvalidRequest("name has a control character.", field="name")
