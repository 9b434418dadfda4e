"""What is done on a node: run an operation there, or stop it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import structlog
from temporalio import activity

from activities.first_word import AT_ONCE_OF_MEMBERS_S, AT_ONCE_S, FirstWord
from activities.following import Following, Pace
from activities.localai import LocalaiWorker
from contracts import temporal as names
from contracts.messages import CancelAnswer, CancelCommand, Command
from contracts.temporal import CancelOrder, CancelWord, NodeTask, NodeWord
from domain.errors import NoAnswer, NodeAway
from domain.node import Protocol
from services.ports import Holds, NodeLink, OperationRuns

log = structlog.get_logger()

CANCEL_ANSWER_S = 10.0


class NodeActivities:
    """One method, one idempotent effect on one node."""

    def __init__(self, link: NodeLink, runs: OperationRuns, holds: Holds) -> None:
        self._link = link
        self._runs = runs
        self._holds = holds
        self._pace = Pace()

    @activity.defn(name=names.FIRST_WORD)
    async def first_word(self, task: NodeTask) -> NodeWord:
        """Send the command; hear the answer, and the outcome of what is over at once."""
        if (held := await self._held(task)) is not None:
            return held
        command = _command(task, decision=_scheduled(activity.info()))
        within = AT_ONCE_OF_MEMBERS_S if task.request.batch_id else AT_ONCE_S
        return await FirstWord(self._link, task.request.node_id, command, within=within).heard()

    @activity.defn(name=names.RUN_ON_NODE)
    async def run_on_node(self, task: NodeTask) -> NodeWord:
        """Send the command and follow the node until it says how it ended, or our time is up."""
        if (held := await self._held(task)) is not None:
            return held
        info = activity.info()
        follow = LocalaiWorker if task.request.protocol is Protocol.LOCALAI else partial(Following, pace=self._pace)
        following = follow(
            link=self._link,
            task=task,
            command=_command(task, decision=task.decision or _scheduled(info)),
            tell_phase=lambda phase: self._runs.report_phase(info.workflow_id or "", task.request.op_id, phase),
        )
        async with _heartbeating(following, every=task.policy.heartbeat_timeout / 4):
            return await following.until_outcome()

    async def _held(self, task: NodeTask) -> NodeWord | None:
        if not task.on_node and (hold := await self._holds.in_force()):
            return NodeWord(held=f"{hold.reason}, by {hold.by}")
        return None

    @activity.defn(name=names.CANCEL_ON_NODE)
    async def cancel_on_node(self, order: CancelOrder) -> CancelWord:
        """Tell the node to stop; what it acknowledges is final."""
        if order.protocol is Protocol.LOCALAI:
            return CancelWord(cannot=True)
        command = CancelCommand(op_id=order.op_id, family=order.family, mode=order.mode)
        try:
            reply = await self._link.cancel(order.node_id, command, within=CANCEL_ANSWER_S)
        except (NodeAway, NoAnswer):
            return CancelWord(away=True)
        if reply.answer is CancelAnswer.STOPPED:
            return CancelWord(stopped=True, stopped_after_s=reply.stopped_after_s)
        return CancelWord(outcome=reply.outcome)


def _scheduled(info: activity.Info) -> int:
    return int(info.scheduled_time.timestamp() * 1000)


def _command(task: NodeTask, *, decision: int) -> Command:
    wanted = task.request.wanted
    return Command(
        backend=wanted.backend,
        uri=wanted.uri,
        name=wanted.name,
        alias=wanted.alias,
        force=wanted.force,
        op_id=task.request.op_id,
        kind=wanted.kind,
        family=wanted.family,
        decision=decision,
        version=wanted.version,
        mirrors=list(wanted.mirrors),
        sha256=wanted.sha256,
        size=wanted.size,
        start=wanted.start,
        policy=wanted.upgrade_policy,
    )


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
