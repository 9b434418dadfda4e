"""The ports on which backends listen. One that was let go rests for a while: somebody may still call the old one."""

import contextlib
import socket
import time
from collections.abc import Callable

from agent.failures import OperationFailed
from domain.operation import Reason

QUARANTINE_S = 15.0
AFFINITY_S = 300.0


class Ports:
    """A range; a process key gets its old port back if nobody else can be hurt by that."""

    def __init__(
        self, host: str, first: int, last: int, *, begin: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._range = range(first, last + 1)
        # agents on one machine begin at different places, so that they seldom want the same port
        self._begin = begin % len(self._range)
        self._clock = clock
        self._held: set[int] = set()
        self._released: dict[int, tuple[str, float]] = {}

    def take(self, key: str) -> int:
        """A port on which nobody listens; those that others had lately only when there is no other."""
        own: list[int] = [port for port, (owner, _) in self._released.items() if owner == key]
        for others_rest in (AFFINITY_S, QUARANTINE_S):
            for port in own + list(self._range[self._begin :]) + list(self._range[: self._begin]):
                if port not in self._held and self._has_rested(port, key, others_rest) and self.is_free(port):
                    self._held.add(port)
                    self._released.pop(port, None)
                    return port
        raise OperationFailed(Reason.NODE_ERROR, f"No port of {self._range[0]}-{self._range[-1]} is free on this node.")

    def hold(self, port: int) -> None:
        """Of a process that was found running."""
        self._held.add(port)

    def release(self, port: int, key: str) -> None:
        self._held.discard(port)
        self._released[port] = (key, self._clock())

    def _has_rested(self, port: int, key: str, others_rest: float) -> bool:
        if port not in self._released:
            return True
        owner, released = self._released[port]
        return self._clock() - released >= (QUARANTINE_S if owner == key else others_rest)

    def is_free(self, port: int) -> bool:
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, port))
            except OSError:
                return False
        return True
