"""Roles, and the caller of a request."""

import enum
from dataclasses import dataclass


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
