"""Watches another operation until it ends: a load waits for the installation of its backend."""

import asyncio
import itertools

from temporalio import activity

from nodesmith.contracts.temporal import dispatch as names
from nodesmith.contracts.temporal.dispatch import OtherEnd, OtherOperation
from nodesmith.domain.operation import ENDED, Reason, State
from nodesmith.services.ports import Operations

POLL_S = 1.0
POLLS_PER_HEARTBEAT = 5
MOST_MISSES = 60
"""polls without a row: the operation was never admitted, or its row is gone"""


class WatchActivities:
    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    @activity.defn(name=names.WATCH_OPERATION)
    async def watch_operation(self, other: OtherOperation) -> OtherEnd:
        """Poll the row until it has ended."""
        misses = 0
        for number in itertools.count():
            if number % POLLS_PER_HEARTBEAT == 0:
                activity.heartbeat()
            state, reason = (await self._operations.states([other.op_id])).get(other.op_id, (State.UNKNOWN, None))
            misses = misses + 1 if state is State.UNKNOWN else 0
            if state in ENDED:
                return OtherEnd(state=state, reason=reason)
            if misses > MOST_MISSES:
                break
            await asyncio.sleep(POLL_S)
        return OtherEnd(state=State.FAILED, reason=Reason.NOT_ADMITTED)
