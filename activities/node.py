"""Activities on a node: dispatch, follow and cancel an operation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import structlog
from temporalio import activity

from nodesmith.activities.dispatch import Dispatcher
from nodesmith.activities.follow_operation import OperationFollower, Stagger
from nodesmith.activities.localai import LocalaiWorker
from nodesmith.activities.send_command import Sender
from nodesmith.contracts.nats.messages import CancelAnswer, CancelCommand
from nodesmith.contracts.temporal import dispatch as names
from nodesmith.contracts.temporal.dispatch import CancelOrder, CancelResult, Dispatched, DispatchTask
from nodesmith.domain.errors import NoAnswer, NodeAway
from nodesmith.domain.node import Protocol
from nodesmith.services.ports import NodeLink, OperationRuns, Permits

log = structlog.get_logger()

CANCEL_TIMEOUT_S = 10.0


class NodeActivities:
    """Each method has one idempotent effect on one node."""

    def __init__(self, link: NodeLink, runs: OperationRuns, permits: Permits) -> None:
        self._link = link
        self._runs = runs
        self._permits = permits
        self._stagger = Stagger()

    @activity.defn(name=names.DISPATCH)
    async def dispatch(self, task: DispatchTask) -> Dispatched:
        """Send the command; return the answer, or the outcome if it comes at once."""
        return Dispatched(result=await Dispatcher(self._link, self._sender(task), task).send())

    @activity.defn(name=names.RUN_ON_NODE)
    async def run_on_node(self, task: DispatchTask) -> Dispatched:
        """Follow the node until it reports the outcome or the request timeout passes; send the command if needed."""
        workflow_id = activity.info().workflow_id or ""
        create_follower = (
            LocalaiWorker
            if task.request.protocol is Protocol.LOCALAI
            else partial(OperationFollower, stagger=self._stagger)
        )
        follower = create_follower(
            link=self._link,
            sender=self._sender(task),
            task=task,
            report_phase=lambda phase: self._runs.report_phase(workflow_id, task.request.op_id, phase),
        )
        async with _heartbeating(follower, every=task.policy.heartbeat_timeout / 4):
            return Dispatched(result=await follower.until_outcome())

    def _sender(self, task: DispatchTask) -> Sender:
        return Sender(self._link, self._permits, task)

    @activity.defn(name=names.CANCEL_ON_NODE)
    async def cancel_on_node(self, order: CancelOrder) -> CancelResult:
        """Tell the node to stop; its acknowledgement is final."""
        if order.protocol is Protocol.LOCALAI:
            return CancelResult(not_interruptible=True)
        command = CancelCommand(op_id=order.op_id, family=order.family, mode=order.mode)
        try:
            reply = await self._link.cancel(order.node_id, command, within=CANCEL_TIMEOUT_S)
        except (NodeAway, NoAnswer):
            return CancelResult(unreachable=True)
        if reply.answer is CancelAnswer.STOPPED:
            return CancelResult(stopped=True, stopped_after_s=reply.stopped_after_s)
        return CancelResult(outcome=reply.outcome, error=reply.error)


@asynccontextmanager
async def _heartbeating(follower: OperationFollower | LocalaiWorker, *, every: timedelta) -> AsyncIterator[None]:
    """Heartbeat in the background: without heartbeats an activity never learns of its cancellation."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(every.total_seconds())
            activity.heartbeat(follower.last_progress)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
