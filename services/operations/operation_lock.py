"""The lock: one open operation per backend or replica of a node. The workflow id is the lock; Temporal enforces it."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from nodesmith.contracts.nats.loads import LoadOrder
from nodesmith.contracts.temporal.locks import workflow_id_of
from nodesmith.contracts.temporal.operations import (
    CancelRequest,
    OperationInput,
    OperationRequest,
    Projection,
    Run,
)
from nodesmith.domain.errors import AlreadyRunning, NodesmithError, OperationConflict, ServiceUnavailable
from nodesmith.domain.operation import ENDED, Reason, State
from nodesmith.services.operations.intents import intent_of
from nodesmith.services.operations.orders import Orders
from nodesmith.services.ports import OperationRuns, Operations

log = structlog.stdlib.get_logger(__name__)

START_TRIES = 3
CLOSE_TIMEOUT_S = 1.5
"""how long to wait for a superseded operation to close"""
POLL_INTERVAL_S = 0.03


@dataclass(frozen=True)
class OperationLock:
    """Starts operations; every admission goes through it."""

    operations: Operations
    runs: OperationRuns
    orders: Orders | None
    """None in a worker, which has no keys: the API signs the orders of a batch before the batch starts"""

    async def admit(self, admitted: OperationInput, load: LoadOrder | None = None) -> tuple[str, bool]:
        """Start the run, or join the open one with the same intent; returns the op id and whether it joined.

        The signed order is written before it returns. A run that finds no order ends as `not_admitted`.
        """
        request, intent = admitted.request, intent_of(admitted.request.wanted)
        workflow_id = workflow_id_of(request)
        for _ in range(START_TRIES):
            try:
                run_id = await self.runs.start(admitted, intent=intent)
            except AlreadyRunning as taken:
                holder = await self.runs.describe(workflow_id, taken.run_id or None)
                if holder is None or not holder.is_open or await self._is_closing(holder):
                    continue
                if holder.intent == intent:
                    await self._write_order_of(holder, request, load)
                    return holder.op_id, True
                await self._supersede(holder, request)
            else:
                await self._write(_first_row(admitted, run_id), load)
                return request.op_id, False
        raise ServiceUnavailable("Other operations keep locking this backend; try again.")

    async def _write(self, first: Projection, load: LoadOrder | None) -> None:
        if self.orders is not None:
            await self.orders.admit(first, load)
        else:
            await after_start(self.operations.insert_queued(first))

    async def _write_order_of(self, holder: Run, request: OperationRequest, load: LoadOrder | None) -> None:
        """Write the order of the joined run: the process that started it may have died before it did so."""
        if self.orders is not None:
            await self.orders.add([request.model_copy(update={"op_id": holder.op_id})], load)

    async def _is_closing(self, holder: Run) -> bool:
        """Whether the holder, ended or being cancelled, has closed its run in time; such a run is never joined."""
        state = (await self.operations.states([holder.op_id])).get(holder.op_id, (State.UNKNOWN, None))[0]
        if state is not State.CANCELLING and state not in ENDED:
            return False
        if await self._wait_until_closed(holder):
            return True
        if state is State.CANCELLING:
            raise OperationConflict(
                f"Operation {holder.op_id} is being cancelled and still holds the backend; try again afterwards.",
                op_id=holder.op_id,
            )
        raise ServiceUnavailable(
            f"Operation {holder.op_id} has ended and its run is still closing; try again in a few seconds.",
            op_id=holder.op_id,
        )

    async def _supersede(self, holder: Run, newer: OperationRequest) -> None:
        """Cancel an older operation that was not dispatched yet; one that was is a conflict."""
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
        if not await self._wait_until_closed(holder) and await self._withdraw_cancel(holder, request):
            raise _conflict(holder, newer)

    async def _withdraw_cancel(self, holder: Run, request: CancelRequest) -> bool:
        """Withdraw the cancel, because the newer request is refused; returns whether the older operation continues."""
        if not await self.runs.cancel(holder.workflow_id, request.model_copy(update={"withdrawn": True})):
            return False
        standing = await self.operations.states([holder.op_id])
        return standing.get(holder.op_id, (State.UNKNOWN, None))[0] not in ENDED

    async def _wait_until_closed(self, holder: Run) -> bool:
        """Wait for the run to close. The workflow decides, because only it knows what it has dispatched."""
        deadline = asyncio.get_running_loop().time() + CLOSE_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            run = await self.runs.describe(holder.workflow_id, holder.run_id)
            if run is None or not run.is_open:
                return True
            await asyncio.sleep(POLL_INTERVAL_S)
        return False


async def after_start(writing: Awaitable[object]) -> None:
    """Write after the start and only log a failure: the workflow writes the same row."""
    try:
        await writing
    except NodesmithError as error:
        log.warning("row not written at admission; the workflow will write it", error=str(error))


def _first_row(admitted: OperationInput, run_id: str) -> Projection:
    """The first row, written by the API; its time is the epoch, so that every write of the workflow is newer."""
    request = admitted.request
    return Projection(
        request=request,
        workflow_id=workflow_id_of(request),
        run_id=run_id,
        at=datetime.fromtimestamp(0, UTC),
        seq=0,
        state=State.QUEUED,
    )


def _conflict(holder: Run, asked: OperationRequest) -> OperationConflict:
    subject = asked.wanted.backend if asked.wanted.kind.rules.locks_replica else asked.wanted.family
    return OperationConflict(
        f"Operation {holder.op_id} holds {subject} on node {asked.node_name} with a different intent.",
        op_id=holder.op_id,
        node=asked.node_name,
        backend=asked.wanted.family,
    )
