"""Roles, the caller of a request, and what grants access: tokens, browser sessions and invites."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


class Role(enum.StrEnum):
    """Each role includes the permissions of the roles before it."""

    CLIENT = "client"
    """calls models at the gateway, and nothing else"""
    VIEWER = "viewer"
    """reads"""
    OPERATOR = "operator"
    """starts and stops operations, drains nodes"""
    ADMIN = "admin"
    """manages nodes, tokens, invites and galleries"""

    def includes(self, needed: "Role") -> bool:
        return _RANK[self] >= _RANK[needed]


_RANK = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True)
class Caller:
    """A person or program with a valid token, or a browser that was signed in with one."""

    name: str
    role: Role
    token_id: str = ""
    """id of the token row, or one derived from the deployment's admin token, which is a file without a row"""


@dataclass(frozen=True, kw_only=True)
class Token:
    """The token of a person or program, without its secret."""

    id: str
    name: str
    """its holder; appears as actor in the audit trail"""
    role: Role
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    """None: never"""
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    """to the minute"""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A signed-in browser."""

    id: str
    actor: str
    """the holder of the token that signed it in"""
    role: Role
    signed_in_at: datetime
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class InviteTerms:
    """What an invite grants, and for how long."""

    approve: bool = False
    """nodes that join with it are approved automatically"""
    ttl_s: float = 3600
    uses: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Invite:
    """An invite, without its secret."""

    id: str
    approve: bool
    uses: int
    used: int
    labels: Mapping[str, str]
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
