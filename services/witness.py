"""What a command proves about its node: nobody there is evidence, an answer clears it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import structlog

from contracts.messages import BackendList, CancelCommand, CancelReply, Command, CommandReply, OpReply
from domain.errors import NodeAway, NodesmithError
from services.ports import NodeLink, NodeRegistry, Reports

log = structlog.get_logger()

T = TypeVar("T")


SOON_S = 0.5
"""answers of that time are noted together: a busy fleet answers all the time, and hardly ever is that news"""


@dataclass
class Witness:
    """A link to the nodes that keeps the registry honest. Questions and cancels prove nothing by themselves."""

    link: NodeLink
    nodes: NodeRegistry
    clock: Callable[[], datetime]
    _answered: dict[str, datetime] = field(default_factory=dict)
    _noting: asyncio.Task[None] | None = None
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
        return await self._seen(node_id, self.link.command(node_id, command, within=within))

    async def list_backends(self, node_id: str, *, within: float) -> BackendList:
        return await self._seen(node_id, self.link.list_backends(node_id, within=within))

    async def cancel(self, node_id: str, command: CancelCommand, *, within: float) -> CancelReply:
        return await self.link.cancel(node_id, command, within=within)

    async def ask(self, node_id: str, op_id: str, *, within: float) -> OpReply:
        return await self.link.ask(node_id, op_id, within=within)

    def attach(self, node_id: str, op_id: str) -> AbstractAsyncContextManager[Reports]:
        return self.link.attach(node_id, op_id)

    async def _seen(self, node_id: str, asking: Awaitable[T]) -> T:
        try:
            answer = await asking
        except NodeAway:
            await self._note(self.nodes.mark_unreachable(node_id, self.clock()))
            raise
        self._answered[node_id] = self.clock()
        if self._noting is None or self._noting.done():
            self._noting = asyncio.create_task(self._note_answers())
        return answer

    async def close(self) -> None:
        """What was answered so far is noted now."""
        if self._noting is not None and not self._noting.done():
            self._hurry.set()
            await self._noting

    async def _note_answers(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), SOON_S)
        answered, self._answered = self._answered, {}
        await self._note(self.nodes.mark_reachable(answered))

    async def _note(self, writing: Awaitable[None]) -> None:
        """The registry may be away: that is no reason to lose what the node said."""
        try:
            await writing
        except NodesmithError as error:
            log.info("evidence not written; the next heartbeat tells", error=str(error))
