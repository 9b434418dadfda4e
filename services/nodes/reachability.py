"""Reachability: a command without a subscriber marks its node unreachable, a reply clears the mark."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import structlog

from nodesmith.contracts.nats.messages import BackendList, CancelCommand, CancelReply, Command, CommandReply, OpReply
from nodesmith.contracts.nats.orders import SignedCommand
from nodesmith.domain.errors import NodeAway, NodesmithError
from nodesmith.domain.kinds import Kind
from nodesmith.services.ports import NodeLink, NodeRegistry, Reports

log = structlog.get_logger()

T = TypeVar("T")


WRITE_INTERVAL_S = 0.5
"""replies of this interval are written together: in a busy fleet few of them change anything"""


@dataclass
class ReachabilityTracker:
    """A `NodeLink` that records reachability in the registry. Status queries and cancels are not recorded."""

    link: NodeLink
    nodes: NodeRegistry
    clock: Callable[[], datetime]
    _answered: dict[str, datetime] = field(default_factory=dict)
    _writing: asyncio.Task[None] | None = None
    _flush: asyncio.Event = field(default_factory=asyncio.Event)

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
        return await self._record_answer(node_id, self.link.command(node_id, command, within=within))

    async def order(self, node_id: str, kind: Kind, command: SignedCommand, *, within: float) -> CommandReply:
        return await self._record_answer(node_id, self.link.order(node_id, kind, command, within=within))

    async def list_backends(self, node_id: str, *, within: float) -> BackendList:
        return await self._record_answer(node_id, self.link.list_backends(node_id, within=within))

    async def cancel(self, node_id: str, command: CancelCommand, *, within: float) -> CancelReply:
        return await self.link.cancel(node_id, command, within=within)

    async def ask(self, node_id: str, op_id: str, *, within: float) -> OpReply:
        return await self.link.ask(node_id, op_id, within=within)

    def attach(self, node_id: str, op_id: str) -> AbstractAsyncContextManager[Reports]:
        return self.link.attach(node_id, op_id)

    async def _record_answer(self, node_id: str, asking: Awaitable[T]) -> T:
        try:
            answer = await asking
        except NodeAway:
            await self._write(self.nodes.mark_unreachable(node_id, self.clock()))
            raise
        self._answered[node_id] = self.clock()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_answers())
        return answer

    async def close(self) -> None:
        """Write the pending replies now."""
        if self._writing is not None and not self._writing.done():
            self._flush.set()
            await self._writing

    async def _write_answers(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._flush.wait(), WRITE_INTERVAL_S)
        answered, self._answered = self._answered, {}
        await self._write(self.nodes.mark_reachable(answered))

    async def _write(self, writing: Awaitable[None]) -> None:
        """Log a failed write only: the caller still needs the node's reply."""
        try:
            await writing
        except NodesmithError as error:
            log.info("evidence not written; the next heartbeat updates it", error=str(error))
