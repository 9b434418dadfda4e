"""Which replica serves the next request: the rules of the gateway, mirrored by the SQL statement ACQUIRE."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

BLOCK = 256
"""bytes of a prompt that are compared at a time"""
BLOCKS = 4
"""blocks that decide which replica has probably seen the beginning of a prompt"""


class Candidate(Protocol):
    """A loaded replica on a node that may get requests."""

    @property
    def id(self) -> str: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def last_used(self) -> Any:
        """A point in time; all candidates of one choice have the same type."""

    @property
    def available(self) -> int:
        """Memory that is available on the node, in bytes."""


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True)
class LoadBounds:
    """How much busier than the least busy replica one may be that has probably cached the prompt."""

    absolute: int = 2
    relative: float = 1.5

    def admit(self, in_flight: int, fewest: int) -> bool:
        return in_flight <= fewest + self.absolute and in_flight <= fewest * self.relative + 1


DEFAULT_BOUNDS = LoadBounds()


@dataclass(frozen=True)
class ReplicaRoute:
    """A loaded replica, as the store knows it."""

    id: str
    model: str
    node_id: str
    address: str
    """host:port of the backend, or of the forwarder of its node"""
    server_name: str = ""
    """the TLS name by which the forwarder knows the replica; empty: the address is the backend's own, without TLS"""
    in_flight: int = 0
    """of all gateways and routers together"""
    last_used: float = 0.0
    """seconds since the epoch"""
    available: int = 0


@dataclass(frozen=True)
class ModelRoute:
    """A deployed model, with or without replicas."""

    name: str
    bounds: LoadBounds | None = DEFAULT_BOUNDS
    """None: every request goes to the least busy replica"""
    loading: Mapping[str, Any] = field(default_factory=dict)
    """what is being done to load it, for clients that wait"""
    created_at: float = 0.0


@dataclass(frozen=True)
class RouteSnapshot:
    models: tuple[ModelRoute, ...]
    replicas: tuple[ReplicaRoute, ...]


def pick(candidates: Sequence[C], *, prefix: bytes | None = None, bounds: LoadBounds = DEFAULT_BOUNDS) -> C | None:
    """Choose the least busy replica; with a prefix, the replica that has probably cached it, unless it is too busy."""
    if not candidates:
        return None
    if prefix is None:
        return min(candidates, key=_order)
    fewest = min(candidate.in_flight for candidate in candidates)
    eligible = [candidate for candidate in candidates if bounds.admit(candidate.in_flight, fewest)]
    return max(eligible, key=lambda candidate: _score(prefix, candidate.id))


def prefix_of(model: str, prompt: bytes) -> bytes | None:
    """The key of a prompt's beginning, the same in every process; None for a prompt too short to be worth it."""
    blocks = min(len(prompt) // BLOCK, BLOCKS)
    if blocks == 0:
        return None
    return hashlib.blake2b(prompt[: blocks * BLOCK], digest_size=16, person=_salt(model)).digest()


def _order(candidate: Candidate) -> tuple[int, Any, int, str]:
    return candidate.in_flight, candidate.last_used, -candidate.available, candidate.id


def _score(prefix: bytes, replica_id: str) -> bytes:
    """Rendezvous hash: when a replica comes or goes, only the prompts of that replica move."""
    return hashlib.blake2b(replica_id.encode(), key=prefix, digest_size=8).digest()


def _salt(model: str) -> bytes:
    return hashlib.blake2b(model.encode(), digest_size=16).digest()
