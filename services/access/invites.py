"""Invites: one command line with which other machines join, limited in time and number of uses."""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from nodesmith.contracts.agent_api import RegisterRequest, RegisterResponse
from nodesmith.domain.access import Caller, Invite, InviteTerms
from nodesmith.domain.audit_change import AuditChange
from nodesmith.domain.errors import InvalidRequest, NodesmithError, UnknownInvite
from nodesmith.domain.node import Protocol as Wire
from nodesmith.domain.token_hash import hash_token

_PREFIX = "nsinv-"


class InviteTable(Protocol):
    async def create(self, terms: InviteTerms, *, token_hash: str, created_by: str, expires_at: datetime) -> Invite: ...
    async def list(self) -> Sequence[Invite]: ...
    async def find(self, invite_id: str) -> Invite | None: ...
    async def revoke(self, invite_id: str) -> Invite | None: ...
    async def redeem(self, token_hash: str, *, node_name: str, machine_id: str) -> tuple[Invite, bool]: ...
    async def release_use(self, invite_id: str, *, node_name: str, machine_id: str) -> None: ...


class NodeLabels(Protocol):
    async def merge(self, node_id: str, labels: Mapping[str, str]) -> Mapping[str, str]: ...


class AuditTrail(Protocol):
    async def begin(self, change: AuditChange) -> int: ...
    async def complete(self, entry: int, change: AuditChange) -> None: ...
    async def forget(self, entry: int) -> None: ...


class Register(Protocol):
    def __call__(self, request: RegisterRequest, *, approve: bool) -> Awaitable[RegisterResponse]: ...


class RootKey(Protocol):
    """The root key of all orders; a joining machine pins its fingerprint."""

    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class JoinAddress:
    """Address, CA and root key with which other machines reach and verify the API."""

    url: str
    ca_pem: str
    ca_sha256: str
    root: RootKey

    def command(self, token: str) -> str:
        pinned = f" --ca-sha256 {self.ca_sha256}" if self.ca_sha256 else ""
        return f"nodesmith agent join {self.url} {token}{pinned} --trust {self.root.fingerprint}"


@dataclass(frozen=True)
class Invites:
    table: InviteTable
    labels: NodeLabels
    trail: AuditTrail
    join_address: JoinAddress
    clock: Callable[[], datetime]

    async def create(self, terms: InviteTerms, *, by: Caller) -> tuple[Invite, str]:
        """Create an invite; returns it with its secret, which is not stored."""
        token = _PREFIX + secrets.token_urlsafe(32)
        invite = await self.table.create(
            terms,
            token_hash=hash_token(token),
            created_by=by.name,
            expires_at=self.clock() + timedelta(seconds=terms.ttl_s),
        )
        return invite, token

    async def revoke(self, invite_id: str) -> Invite:
        revoked = await self.table.revoke(invite_id)
        if revoked is None:
            raise UnknownInvite(f"There is no invite {invite_id} in force.", invite=invite_id)
        return revoked

    async def admit(self, request: RegisterRequest, token: str, register: Register) -> RegisterResponse:
        """Count a use, register the node, set its labels; a failed registration releases the use."""
        if request.protocol is Wire.LOCALAI:
            raise InvalidRequest("token: an invite is for our own agent, not for a LocalAI worker.", field="token")
        machine = {"node_name": request.name, "machine_id": request.machine_id}
        invite, is_counted = await self.table.redeem(hash_token(token), **machine)
        joining = _joining(invite, request.name)
        entry = await self.trail.begin(joining)
        try:
            response = await register(request, approve=invite.approve)
        except NodesmithError:
            if is_counted:
                await self.table.release_use(invite.id, **machine)
            await self.trail.forget(entry)
            raise
        if invite.labels:
            await self.labels.merge(response.id, invite.labels)
        await self.trail.complete(entry, replace(joining, target_id=response.id))
        return response


def _joining(invite: Invite, name: str) -> AuditChange:
    after = {"approved": invite.approve, "labels": dict(invite.labels)}
    return AuditChange(f"invite {invite.id}", "nodes.join", name, after=after)


def is_invite(token: str) -> bool:
    return token.startswith(_PREFIX)
