"""Writing what happened to PostgreSQL."""

from temporalio import activity

from contracts import temporal as names
from contracts.temporal import Recorded, Transitions
from services.ports import Operations


class RecordActivities:
    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    @activity.defn(name=names.RECORD)
    async def record(self, transitions: Transitions) -> Recorded:
        """Rows and their events in one transaction; repeating it, or coming late, changes nothing."""
        return await self._operations.record(*transitions.rows, only_unsent=transitions.only_unsent)
