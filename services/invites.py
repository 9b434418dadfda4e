"""Invites: one line that lets another machine join, for a while and a number of times."""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from contracts.access import InviteCreated, InviteRequest, InviteView
from contracts.node_http import RegisterRequest, RegisterResponse
from domain.access import Caller
from domain.change import Change
from domain.errors import InvalidRequest, NodesmithError, UnknownInvite
from domain.node import Protocol as Wire
from domain.secrets import hash_token

_MARK = "nsinv-"


class InviteTable(Protocol):
    async def create(
        self, request: InviteRequest, *, token_hash: str, created_by: str, expires_at: datetime
    ) -> InviteView: ...
    async def list(self) -> Sequence[InviteView]: ...
    async def revoke(self, invite_id: str) -> InviteView | None: ...
    async def redeem(self, token_hash: str, *, node_name: str, machine_id: str) -> tuple[InviteView, bool]: ...
    async def give_back(self, invite_id: str, *, node_name: str, machine_id: str) -> None: ...


class NodeLabels(Protocol):
    async def merge(self, node_id: str, labels: Mapping[str, str]) -> Mapping[str, str]: ...


class Trail(Protocol):
    async def begin(self, change: Change) -> int: ...
    async def complete(self, entry: int, change: Change) -> None: ...
    async def forget(self, entry: int) -> None: ...


class Register(Protocol):
    def __call__(self, request: RegisterRequest, *, approve: bool) -> Awaitable[RegisterResponse]: ...


@dataclass(frozen=True)
class Door:
    """How other machines reach the API."""

    url: str
    ca_pem: str = ""
    ca_sha256: str = ""

    def command(self, token: str) -> str:
        pinned = f" --ca-sha256 {self.ca_sha256}" if self.ca_sha256 else ""
        return f"nodesmith agent join {self.url} {token}{pinned}"


@dataclass(frozen=True)
class Invites:
    table: InviteTable
    labels: NodeLabels
    trail: Trail
    door: Door
    clock: Callable[[], datetime]

    async def create(self, request: InviteRequest, *, by: Caller) -> InviteCreated:
        token = _MARK + secrets.token_urlsafe(32)
        made = await self.table.create(
            request,
            token_hash=hash_token(token),
            created_by=by.name,
            expires_at=self.clock() + timedelta(seconds=request.ttl_s),
        )
        return InviteCreated(
            **made.model_dump(),
            token=token,
            url=self.door.url,
            ca_sha256=self.door.ca_sha256,
            command=self.door.command(token),
        )

    async def revoke(self, invite_id: str) -> InviteView:
        revoked = await self.table.revoke(invite_id)
        if revoked is None:
            raise UnknownInvite(f"There is no invite {invite_id} in force.", invite=invite_id)
        return revoked

    async def admit(self, request: RegisterRequest, token: str, register: Register) -> RegisterResponse:
        """Count, register, label. What could not be registered is given back."""
        if request.protocol is Wire.LOCALAI:
            raise InvalidRequest("token: an invite is for our own agent, not for a LocalAI worker.", field="token")
        who = {"node_name": request.name, "machine_id": request.machine_id}
        invite, is_counted = await self.table.redeem(hash_token(token), **who)
        joining = _joining(invite, request.name)
        entry = await self.trail.begin(joining)
        try:
            response = await register(request, approve=invite.approve)
        except NodesmithError:
            if is_counted:
                await self.table.give_back(invite.id, **who)
            await self.trail.forget(entry)
            raise
        if invite.labels:
            await self.labels.merge(response.id, invite.labels)
        await self.trail.complete(entry, replace(joining, target_id=response.id))
        return response


def _joining(invite: InviteView, name: str) -> Change:
    after = {"approved": invite.approve, "labels": invite.labels}
    return Change(f"invite {invite.id}", "nodes.join", name, after=after)


def is_invite(token: str) -> bool:
    return token.startswith(_MARK)
