"""Tokens, invites, browser sessions, keys and the audit trail."""

from datetime import datetime

from nodesmith.client.calls import Call, Mode, Resource, endpoint, paged, segment
from nodesmith.contracts.http.access import (
    AuditEntry,
    InviteCreated,
    InviteRequest,
    InviteView,
    SessionView,
    TokenCreated,
    TokenRequest,
    TokenView,
)
from nodesmith.contracts.http.keys import KeysView, RotateKeys
from nodesmith.contracts.http.shared import Page, SignInLink


class Tokens(Resource[Mode]):
    @endpoint
    def list(self) -> Call[Page[TokenView]]:
        """All tokens, valid ones first, without their secrets."""
        return Call("GET", "/tokens", Page[TokenView])

    @endpoint
    def get(self, token: str) -> Call[TokenView]:
        """One token, by id or name."""
        return Call("GET", f"/tokens/{segment(token)}", TokenView)

    @endpoint
    def create(self, request: TokenRequest, *, reason: str = "") -> Call[TokenCreated]:
        """Create a token; only this answer contains its secret."""
        return Call("POST", "/tokens", TokenCreated, request, {"reason": reason})

    @endpoint
    def delete(self, token: str, *, reason: str = "") -> Call[TokenView]:
        """Revoke a token, by id or name."""
        return Call("DELETE", f"/tokens/{segment(token)}", TokenView, query={"reason": reason})


class Invites(Resource[Mode]):
    @endpoint
    def list(self) -> Call[Page[InviteView]]:
        """All invites, newest first, without their secrets."""
        return Call("GET", "/invites", Page[InviteView])

    @endpoint
    def get(self, invite: str) -> Call[InviteView]:
        """One invite."""
        return Call("GET", f"/invites/{segment(invite)}", InviteView)

    @endpoint
    def create(self, request: InviteRequest, *, reason: str = "") -> Call[InviteCreated]:
        """Create an invite, with the command to run on the other machine."""
        return Call("POST", "/invites", InviteCreated, request, {"reason": reason})

    @endpoint
    def delete(self, invite: str, *, reason: str = "") -> Call[InviteView]:
        """The invite admits no more nodes."""
        return Call("DELETE", f"/invites/{segment(invite)}", InviteView, query={"reason": reason})


class Sessions(Resource[Mode]):
    @endpoint
    def list(self) -> Call[Page[SessionView]]:
        """The signed-in browsers of the caller; for an admin, all of them."""
        return Call("GET", "/sessions", Page[SessionView])

    @endpoint
    def create_link(self, *, reason: str = "") -> Call[SignInLink]:
        """Create a link that signs in one browser, once."""
        return Call("POST", "/sign-in-links", SignInLink, query={"reason": reason})

    @endpoint
    def delete(self, session: str, *, reason: str = "") -> Call[SessionView]:
        """Sign out one browser."""
        return Call("DELETE", f"/sessions/{segment(session)}", SessionView, query={"reason": reason})


class Keys(Resource[Mode]):
    @endpoint
    def list(self) -> Call[KeysView]:
        """The order keys of the newest trust list, and how many nodes lack that list."""
        return Call("GET", "/keys", KeysView)

    @endpoint
    def rotate(self, request: RotateKeys, *, reason: str = "") -> Call[KeysView]:
        """Sign with a new order key from now on."""
        return Call("POST", "/keys/rotate", KeysView, request, {"reason": reason})


class Audit(Resource[Mode]):
    def _list(
        self,
        *,
        actor: str | None = None,
        target: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Call[Page[AuditEntry]]:
        """Every change of the last 400 days, the newest first."""
        query = {"actor": actor, "target": target, "action": action, "limit": limit, "cursor": cursor}
        times = {"since": since, "until": until}
        return Call("GET", "/audit", Page[AuditEntry], query={**query, **times})

    list = endpoint(_list)
    each = paged(_list)
