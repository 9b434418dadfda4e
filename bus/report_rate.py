"""Limits the reports that one node may send: each costs a verification, and a log line if it is wrong."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import structlog

log = structlog.stdlib.get_logger(__name__)

PER_SECOND = 200.0
"""an agent sends about two progress reports a second for each operation"""
BURST = 1000.0
_MOST_SENDERS = 20_000
_LOG_EVERY_S = 60.0


@dataclass
class _Sender:
    left: float
    at: float
    logged_at: float = float("-inf")


class ReportRate:
    """A token bucket per sender; the oldest senders are forgotten, because whoever owns NATS can invent any number."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._senders: OrderedDict[Hashable, _Sender] = OrderedDict()

    def admits(self, sender: Hashable) -> bool:
        """Count one report; False if the sender has sent too many, which is logged once a minute."""
        now = self._clock()
        bucket = self._senders.setdefault(sender, _Sender(BURST, now))
        self._senders.move_to_end(sender)
        if len(self._senders) > _MOST_SENDERS:
            self._senders.popitem(last=False)
        bucket.left, bucket.at = min(BURST, bucket.left + (now - bucket.at) * PER_SECOND), now
        if bucket.left >= 1:
            bucket.left -= 1
            return True
        if now - bucket.logged_at >= _LOG_EVERY_S:
            bucket.logged_at = now
            log.warning("reports.too_many", sender=sender, meaning="reports above the limit are dropped")
        return False
