"""Source settings: how a host is reached, as an admin sets it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """How nodes and galleries reach a host."""

    username: str = ""
    password: str = ""
    ca: str = ""
    """additional trusted certificates in PEM"""
    proxy: str = ""
    realms: Sequence[str] = ()
    """hosts of token services that may get the password too"""


@dataclass(frozen=True, kw_only=True)
class StoredSource:
    """The stored settings of a host, without secrets."""

    host: str
    username: str
    has_password: bool
    has_ca: bool
    has_proxy: bool
    realms: Sequence[str]
    updated_by: str
    updated_at: datetime
