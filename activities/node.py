"""What is done on a node: run an operation there, or stop it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import structlog
from temporalio import activity

from activities.dispatch import Dispatcher
from activities.following import Following, Pace
from activities.localai import LocalaiWorker
from activities.sending import Sender
from contracts import dispatch as names
from contracts.dispatch import CancelOrder, CancelResult, Dispatched, DispatchTask
from contracts.messages import CancelAnswer, CancelCommand
from domain.errors import NoAnswer, NodeAway
from domain.node import Protocol
from services.ports import NodeLink, OperationRuns, Permits

log = structlog.get_logger()

CANCEL_ANSWER_S = 10.0


class NodeActivities:
    """One method, one idempotent effect on one node."""

    def __init__(self, link: NodeLink, runs: OperationRuns, permits: Permits) -> None:
        self._link = link
        self._runs = runs
        self._permits = permits
        self._pace = Pace()

    @activity.defn(name=names.DISPATCH)
    async def dispatch(self, task: DispatchTask) -> Dispatched:
        """Send the command; return the answer, and the outcome of what ends at once."""
        return Dispatched(result=await Dispatcher(self._link, self._sender(task), task).send())

    @activity.defn(name=names.RUN_ON_NODE)
    async def run_on_node(self, task: DispatchTask) -> Dispatched:
        """Follow the node until it reports the end, or the request timeout passes; send what it does not know."""
        workflow_id = activity.info().workflow_id or ""
        follow = LocalaiWorker if task.request.protocol is Protocol.LOCALAI else partial(Following, pace=self._pace)
        following = follow(
            link=self._link,
            sender=self._sender(task),
            task=task,
            tell_phase=lambda phase: self._runs.report_phase(workflow_id, task.request.op_id, phase),
        )
        async with _heartbeating(following, every=task.policy.heartbeat_timeout / 4):
            return Dispatched(result=await following.until_outcome())

    def _sender(self, task: DispatchTask) -> Sender:
        return Sender(self._link, self._permits, task)

    @activity.defn(name=names.CANCEL_ON_NODE)
    async def cancel_on_node(self, order: CancelOrder) -> CancelResult:
        """Tell the node to stop; what it acknowledges is final."""
        if order.protocol is Protocol.LOCALAI:
            return CancelResult(not_interruptible=True)
        command = CancelCommand(op_id=order.op_id, family=order.family, mode=order.mode)
        try:
            reply = await self._link.cancel(order.node_id, command, within=CANCEL_ANSWER_S)
        except (NodeAway, NoAnswer):
            return CancelResult(unreachable=True)
        if reply.answer is CancelAnswer.STOPPED:
            return CancelResult(stopped=True, stopped_after_s=reply.stopped_after_s)
        return CancelResult(outcome=reply.outcome, error=reply.error)


@asynccontextmanager
async def _heartbeating(following: Following | LocalaiWorker, *, every: timedelta) -> AsyncIterator[None]:
    """An activity that does not heartbeat never learns that it was cancelled."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(every.total_seconds())
            activity.heartbeat(following.last_progress)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
