"""Sending a command: each one needs a permit from the row of its operation."""

import asyncio
import uuid

from contracts.dispatch import DispatchTask, Granted, Permit, StoreUnreachable, Unsent
from contracts.messages import Command, CommandReply
from domain.errors import LinkDown, NodeAway, ServiceUnavailable
from domain.node import Protocol
from services.ports import NodeLink, Permits

PERMIT_S = 1.0
"""a workflow task waits for this answer"""


class NotSent(Exception):
    """The row gave no permit."""

    def __init__(self, why: Unsent) -> None:
        super().__init__(why.kind)
        self.why = why


class Sender:
    """Marks the row before each command, and takes the mark back when the command provably did not leave."""

    def __init__(self, link: NodeLink, permits: Permits, task: DispatchTask) -> None:
        self._link = link
        self._permits = permits
        self._task = task
        self.command = command_of(task)

    async def send(self, *, within: float, instead: Command | None = None) -> CommandReply:
        """`NotSent`: no permit. `NodeAway`, `LinkDown`: it did not leave. `NoAnswer`: it may have arrived."""
        token = uuid.uuid4().hex
        permit = await self._permit(token)
        if not isinstance(permit, Granted):
            raise NotSent(permit)
        try:
            return await self._link.command(self._task.request.node_id, instead or self.command, within=within)
        except (NodeAway, LinkDown):
            await self._withdraw(token)
            raise

    async def _permit(self, token: str) -> Permit | StoreUnreachable:
        """A LocalAI worker is sent the same again to attach to its work, also while it is being cancelled."""
        task = self._task
        try:
            async with asyncio.timeout(PERMIT_S):
                return await self._permits.permit(
                    task.request.op_id,
                    task.decision,
                    token=token,
                    on_node=task.accepted,
                    while_cancelling=task.accepted and task.request.protocol is Protocol.LOCALAI,
                )
        except (ServiceUnavailable, TimeoutError):
            return StoreUnreachable()

    async def _withdraw(self, token: str) -> None:
        """If PostgreSQL is away now the mark stays: the operation then counts as sent, which is the safe side."""
        try:
            async with asyncio.timeout(PERMIT_S):
                await self._permits.withdraw(self._task.request.op_id, self._task.decision, token=token)
        except (ServiceUnavailable, TimeoutError):
            return


def command_of(task: DispatchTask) -> Command:
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
        decision=task.decision,
        version=wanted.version,
        mirrors=list(wanted.mirrors),
        sha256=wanted.sha256,
        size=wanted.size,
        start=wanted.start,
        policy=wanted.upgrade_policy,
    )
