"""Retention: what has ended is kept for a while, and then goes by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from services.ports import OperationHistory

log = structlog.stdlib.get_logger(__name__)

KEPT = timedelta(days=90)
AUDIT_KEPT = timedelta(days=400)


class AuditHistory(Protocol):
    async def purge(self, before: datetime) -> int: ...


@dataclass(frozen=True)
class Retention:
    history: OperationHistory
    audit: AuditHistory
    clock: Callable[[], datetime]
    kept: timedelta = KEPT

    async def sweep(self) -> None:
        """Purge what is too old, some at a time: the next look goes on."""
        if purged := await self.history.purge(self.clock() - self.kept):
            log.info("history.purged", operations=purged)
        if purged := await self.audit.purge(self.clock() - AUDIT_KEPT):
            log.info("audit.purged", entries=purged)
