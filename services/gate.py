"""The gate: one open operation per (node, backend). The workflow id is the lock, Temporal keeps it."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from contracts.temporal import CancelRequest, OperationInput, OperationRequest, Projection, Run, operation_workflow_id
from domain.errors import AlreadyRunning, NodesmithError, OperationConflict, ServiceUnavailable
from domain.operation import ENDED, Reason, State
from services.intents import intent_of
from services.ports import OperationRuns, Operations

log = structlog.stdlib.get_logger(__name__)

START_TRIES = 3
SUPERSEDE_S = 1.5
"""how long we wait for an older request to give way"""
LOOK_AGAIN_S = 0.03


@dataclass(frozen=True)
class Gate:
    """Where every operation passes, whoever asks for it."""

    operations: Operations
    runs: OperationRuns

    async def admit(self, admitted: OperationInput) -> tuple[str, bool]:
        """Start the run, or join the one that wants the same; the workflow id is the lock."""
        request, intent = admitted.request, intent_of(admitted.request.wanted)
        workflow_id = operation_workflow_id(request.node_id, request.wanted.family)
        for _ in range(START_TRIES):
            try:
                run_id = await self.runs.start(admitted, intent=intent)
            except AlreadyRunning as taken:
                holder = await self.runs.describe(workflow_id, taken.run_id or None)
                if holder is None or not holder.is_open or await self._is_closing(holder):
                    continue
                if holder.intent == intent:
                    return holder.op_id, True
                await self._supersede(holder, request)
            else:
                await after_start(self.operations.insert_queued(_first_row(admitted, run_id)))
                return request.op_id, False
        raise ServiceUnavailable("The backend is locked by operations that come and go; ask again.")

    async def _is_closing(self, holder: Run) -> bool:
        """A holder that has ended or is being cancelled is not joined: its run closes, as a rule in a moment."""
        state = (await self.operations.standing([holder.op_id])).get(holder.op_id, (State.UNKNOWN, None))[0]
        if state is not State.CANCELLING and state not in ENDED:
            return False
        if await self._gives_way(holder):
            return True
        if state is State.CANCELLING:
            raise OperationConflict(
                f"Operation {holder.op_id} is being cancelled and still holds the backend; ask again afterwards.",
                op_id=holder.op_id,
            )
        raise ServiceUnavailable(
            f"Operation {holder.op_id} has ended and its run is still closing; ask again in a few seconds.",
            op_id=holder.op_id,
        )

    async def _supersede(self, holder: Run, newer: OperationRequest) -> None:
        """An older intent that never reached its node gives way; one that did is a conflict."""
        row = await self.operations.find(holder.op_id)
        if row is None or row.dispatched_at is not None or row.state not in (State.QUEUED, State.WAITING):
            raise _conflict(holder, newer)
        request = CancelRequest(
            op_id=holder.op_id,
            by=newer.requested_by,
            why=Reason.SUPERSEDED,
            detail=f"superseded by {newer.op_id}",
            only_undispatched=True,
        )
        await self.runs.cancel(holder.workflow_id, request)
        if not await self._gives_way(holder):
            raise _conflict(holder, newer)

    async def _gives_way(self, holder: Run) -> bool:
        """The workflow decides, because only it knows what it has sent; we look whether it has ended."""
        deadline = asyncio.get_running_loop().time() + SUPERSEDE_S
        while asyncio.get_running_loop().time() < deadline:
            run = await self.runs.describe(holder.workflow_id, holder.run_id)
            if run is None or not run.is_open:
                return True
            await asyncio.sleep(LOOK_AGAIN_S)
        return False


async def after_start(writing: Awaitable[object]) -> None:
    """The workflow has started, so the answer is 202 whatever happens to our row: the workflow writes it too."""
    try:
        await writing
    except NodesmithError as error:
        log.warning("row not written at admission; the workflow will write it", error=str(error))


def _first_row(admitted: OperationInput, run_id: str) -> Projection:
    """The row as the API writes it: older than anything the workflow can write, whatever the clocks say."""
    request = admitted.request
    return Projection(
        request=request,
        workflow_id=operation_workflow_id(request.node_id, request.wanted.family),
        run_id=run_id,
        at=datetime.fromtimestamp(0, UTC),
        seq=0,
        state=State.QUEUED,
    )


def _conflict(holder: Run, asked: OperationRequest) -> OperationConflict:
    return OperationConflict(
        f"Operation {holder.op_id} holds {asked.wanted.family} on node {asked.node_name} and wants something else.",
        op_id=holder.op_id,
        node=asked.node_name,
        backend=asked.wanted.family,
    )
