"""Retention: deletes ended operations and audit entries after their retention time."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from nodesmith.services.ports import OperationHistory

log = structlog.stdlib.get_logger(__name__)

RETENTION = timedelta(days=90)
AUDIT_RETENTION = timedelta(days=400)


class AuditHistory(Protocol):
    async def purge(self, before: datetime) -> int: ...


@dataclass(frozen=True)
class Retention:
    history: OperationHistory
    audit: AuditHistory
    clock: Callable[[], datetime]
    kept: timedelta = RETENTION

    async def sweep(self) -> None:
        """Purge one portion of what is too old; the next sweep continues."""
        if purged := await self.history.purge(self.clock() - self.kept):
            log.info("history.purged", operations=purged)
        if purged := await self.audit.purge(self.clock() - AUDIT_RETENTION):
            log.info("audit.purged", entries=purged)
