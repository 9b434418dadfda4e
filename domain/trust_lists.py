"""Trust lists: their keys, how the lists of one API relate to the recorded ones, and which nodes lack the newest."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


class Relation(enum.StrEnum):
    """How the trust lists of one API relate to those of its installation."""

    SAME = "same"
    NEWER = "newer"
    OLDER = "older"
    FOREIGN = "foreign"
    """neither is a continuation of the other"""


@dataclass(frozen=True)
class Compared:
    """The trust lists of one API compared with the recorded ones."""

    relation: Relation
    version: int
    root: str
    """fingerprint"""
    recorded_version: int
    recorded_root: str


@dataclass(frozen=True)
class OutdatedNodes:
    """Nodes without the newest trust list: they still accept the keys of an older list."""

    count: int
    names: Sequence[str]
    """the first few"""


@dataclass(frozen=True, kw_only=True)
class TrustedKey:
    """A key whose orders nodes accept, without its secret."""

    kid: str
    until: datetime
    """nodes reject its signatures after this time"""
    signs: bool
    """this API signs orders with it"""


@dataclass(frozen=True, kw_only=True)
class TrustedKeys:
    """The keys of the newest trust list."""

    version: int
    trust: str
    """fingerprint of the root key"""
    keys: Sequence[TrustedKey]
