"""Allocates ports for backends. A released port has a cool-down, because clients may still call the old process."""

import contextlib
import socket
import time
from collections.abc import Callable

from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.domain.operation import Reason

QUARANTINE_S = 15.0
AFFINITY_S = 300.0


class Ports:
    """A range of ports; a process key gets its last port again if that is safe."""

    def __init__(
        self, host: str, first: int, last: int, *, begin: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._range = range(first, last + 1)
        # agents on one machine start at different offsets, so that they rarely compete for a port
        self._begin = begin % len(self._range)
        self._clock = clock
        self._held: set[int] = set()
        self._released: dict[int, tuple[str, float]] = {}

    def acquire(self, key: str) -> int:
        """Return a free port; ports that other keys used recently come last."""
        own: list[int] = [port for port, (owner, _) in self._released.items() if owner == key]
        for cooldown in (AFFINITY_S, QUARANTINE_S):
            for port in own + list(self._range[self._begin :]) + list(self._range[: self._begin]):
                if port not in self._held and self._is_past_cooldown(port, key, cooldown) and self.is_free(port):
                    self._held.add(port)
                    self._released.pop(port, None)
                    return port
        message = f"No port in {self._range[0]}-{self._range[-1]} is free on this node."
        raise OperationFailed(Reason.NODE_ERROR, message)

    def hold(self, port: int) -> None:
        """Mark the port of an adopted process as used."""
        self._held.add(port)

    def release(self, port: int, key: str) -> None:
        self._held.discard(port)
        self._released[port] = (key, self._clock())

    def _is_past_cooldown(self, port: int, key: str, cooldown: float) -> bool:
        if port not in self._released:
            return True
        owner, released = self._released[port]
        return self._clock() - released >= (QUARANTINE_S if owner == key else cooldown)

    def is_free(self, port: int) -> bool:
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, port))
            except OSError:
                return False
        return True
