"""Who may do what: roles, and the caller behind a request."""

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    """Each may do what the ones before it may."""

    VIEWER = "viewer"
    """reads"""
    OPERATOR = "operator"
    """starts and stops operations, drains nodes"""
    ADMIN = "admin"
    """decides who takes part: nodes, tokens, invites, galleries"""

    def includes(self, needed: "Role") -> bool:
        return _RANK[self] >= _RANK[needed]


_RANK = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True)
class Caller:
    """A person or program that showed a valid token, or a browser that one signed in."""

    name: str
    role: Role
    token_id: str = ""
    """empty for the admin token of the deployment, which is a file and not a row"""
