"""Limits on what an unauthenticated client of an HTTP process may use: bytes, time and connections."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from nodesmith.runtime.client_addresses import network


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of every connection, with TLS or without."""

    head_bytes: int = 32 * 1024
    """of the request line and the headers, and of any other bytes that are not body"""
    headers: int = 100
    head_s: float = 10.0
    """from the connection, or the first byte of the next request, to the end of the headers"""
    body_s: float = 20.0
    """time for a body, plus a second for each `body_rate` bytes received"""
    body_rate: float = 1000.0
    """bytes per second that a body must average"""
    stuck_s: float = 120.0
    """a client that reads nothing of its response for this long is disconnected"""
    pipelined: int = 32
    """requests that wait on one connection for the response to an earlier one"""
    total: int = 4000
    """open connections"""
    per_address: int = 1000
    """open connections of one address; trusted proxies have no such limit"""


@dataclass
class OpenConnections:
    """Counts the open connections by address."""

    limits: ConnectionLimits
    is_proxy: Callable[[str], bool] = field(default=lambda _address: False)
    total: int = 0
    by_network: Counter[str] = field(default_factory=Counter)

    def acquire(self, address: str) -> bool:
        """Count one more connection; False if it exceeds a limit."""
        self.total += 1
        self.by_network[network(address)] += 1
        if self.total > self.limits.total:
            return False
        return self.by_network[network(address)] <= self.limits.per_address or self.is_proxy(address)

    def release(self, address: str) -> None:
        self.total -= 1
        self.by_network[network(address)] -= 1
        if self.by_network[network(address)] <= 0:
            del self.by_network[network(address)]
