"""Sends commands: each needs a permit from the row of its operation and is built from the signed order."""

import asyncio
import time
import uuid

from nodesmith.contracts.nats.messages import CommandReply
from nodesmith.contracts.nats.orders import Order, SignedCommand
from nodesmith.contracts.temporal.dispatch import (
    DispatchTask,
    NotAdmitted,
    Permit,
    PermitGranted,
    StoreUnreachable,
    Unsent,
)
from nodesmith.domain.errors import LinkDown, NodeAway, ServiceUnavailable
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Protocol
from nodesmith.services.ports import NodeLink, Permits

PERMIT_TIMEOUT_S = 1.0
"""short, because a workflow task waits for the permit"""
ORDER_WAIT_S = 0.5
"""how long to wait for the order, which the API writes right after it starts the run"""
FIRST_ORDER_POLL_S = 0.01


class NotSent(Exception):
    """The row gave no permit."""

    def __init__(self, why: Unsent) -> None:
        super().__init__(why.kind)
        self.why = why


class Sender:
    """Marks the row as sent before each command, and withdraws the mark when the command provably was not sent."""

    def __init__(self, link: NodeLink, permits: Permits, task: DispatchTask) -> None:
        self._link = link
        self._permits = permits
        self._task = task

    async def send(self, *, within: float, as_forced_install: bool = False) -> CommandReply:
        """Raises `NotSent` (no permit), `NodeAway` or `LinkDown` (not sent), `NoAnswer` (it may have arrived)."""
        token = uuid.uuid4().hex
        permit = await self._permit_with_retry(token)
        if not isinstance(permit, PermitGranted):
            raise NotSent(permit)
        order = Order.model_validate_json(permit.order.payload)
        if order.node != self._task.request.node_id:  # a run was started for another node under this id
            await self._withdraw(token)
            raise NotSent(NotAdmitted(has_order=False))
        try:
            return await self._send(permit, order, within=within, as_forced_install=as_forced_install)
        except (NodeAway, LinkDown):
            await self._withdraw(token)
            raise

    async def _send(
        self, permit: PermitGranted, order: Order, *, within: float, as_forced_install: bool
    ) -> CommandReply:
        """Send the signed order to an agent; a LocalAI worker cannot verify and gets the plain command."""
        decision = self._task.decision
        if self._task.request.protocol is not Protocol.LOCALAI:
            signed = SignedCommand(order=permit.order, decision=decision)
            return await self._link.order(order.node, order.kind, signed, within=within)
        command = order.command(decision)
        if as_forced_install:
            command = command.model_copy(update={"kind": Kind.INSTALL, "force": True})
        return await self._link.command(order.node, command, within=within)

    async def _permit_with_retry(self, token: str) -> Permit | StoreUnreachable:
        """Request the permit, and retry briefly: a run may start before the API has written its order."""
        until, pause = time.monotonic() + ORDER_WAIT_S, FIRST_ORDER_POLL_S
        while True:
            permit = await self._permit(token)
            is_too_early = isinstance(permit, NotAdmitted) and not permit.has_order
            if not is_too_early or time.monotonic() >= until:
                return permit
            await asyncio.sleep(pause)
            pause *= 2

    async def _permit(self, token: str) -> Permit | StoreUnreachable:
        """Request the permit once. A LocalAI worker gets the same command again to reattach, even during a cancel."""
        task = self._task
        try:
            async with asyncio.timeout(PERMIT_TIMEOUT_S):
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
        """Withdraw the mark. If PostgreSQL is down it stays: the operation then counts as sent, which is safe."""
        try:
            async with asyncio.timeout(PERMIT_TIMEOUT_S):
                await self._permits.withdraw(self._task.request.op_id, self._task.decision, token=token)
        except (ServiceUnavailable, TimeoutError):
            return
