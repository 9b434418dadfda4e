"""The life of a node: drain, resume, leave, remove; and what becomes of its operations."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog

from contracts.messages import StopOrder, StopWhy
from contracts.node_http import LifeChanged, NodeView, Running
from contracts.operation_http import OperationView
from contracts.temporal import CancelRequest
from domain.errors import UnknownNode
from domain.node import NodeStatus
from domain.node import Protocol as Wire
from domain.operation import Kind, Reason, State
from services.ports import NodeRegistry

log = structlog.get_logger()

NOT_BEGUN = frozenset({State.QUEUED, State.WAITING})
ON_THE_NODE = frozenset({State.RUNNING, State.STILL_INSTALLING})
REACHABLE = frozenset({NodeStatus.HEALTHY, NodeStatus.DRAINING})
MONITOR = "fleet monitor"


class NodeLife(Protocol):
    """The facts about a node's life, and the operations they concern."""

    async def drain(self, node_id: str, *, now: datetime) -> None: ...
    async def resume(self, node_id: str, *, now: datetime) -> None: ...
    async def remove(self, node_id: str, *, now: datetime) -> None: ...
    async def reset_credential(self, node_id: str, *, now: datetime) -> None: ...
    async def leaving(self, node_id: str, *, now: datetime) -> None: ...
    async def left(self, node_id: str, *, now: datetime, boot_id: str = "") -> None: ...
    async def stayed(self, node_id: str) -> None: ...
    async def removed_among(self, node_ids: Sequence[str]) -> Sequence[str]: ...
    async def open_on(self, node_id: str) -> Sequence[OperationView]: ...
    async def stranded(self) -> Sequence[tuple[OperationView, bool]]: ...


class CancelSignals(Protocol):
    """The runs of operations: False when no such run is open, `ServiceUnavailable` when Temporal is away."""

    async def cancel(self, workflow_id: str, request: CancelRequest) -> bool: ...


class Orders(Protocol):
    """Words to a node's process that need no answer."""

    async def stop(self, node_id: str, order: StopOrder) -> None: ...


class Revoking(Protocol):
    """The bus, where a credential that was taken back must not be heard any more."""

    async def enforce(self) -> None: ...
    def enforce_after(self, is_told: Callable[[], Awaitable[bool]], then: Callable[[], Awaitable[None]]) -> None: ...


@dataclass(frozen=True)
class Lifecycle:
    nodes: NodeRegistry
    life: NodeLife
    runs: CancelSignals
    orders: Orders
    clock: Callable[[], datetime]
    revocation: Revoking

    # by an admin ----------------------------------------------------------------------------------------------

    async def drain(self, node: str, *, running: Running, actor: str, reason: str = "") -> LifeChanged:
        """No new work. What has not begun ends; what runs finishes, unless it shall be cancelled."""
        known = await self._known(node)
        await self.life.drain(known.id, now=self.clock())
        doomed = [row for row in await self.life.open_on(known.id) if _ends_by_drain(row, running)]
        await self._cancel(doomed, Reason.NODE_DRAINED, by=actor, detail=reason)
        return await self._changed(known, "node set to draining", doomed)

    async def resume(self, node: str) -> LifeChanged:
        """Takes a drain back; a node that was never approved stays pending."""
        known = await self._known(node)
        await self.life.resume(known.id, now=self.clock())
        return await self._changed(known, "node resumed", [])

    async def remove(self, node: str, *, actor: str, reason: str = "") -> LifeChanged:
        """The node goes, and its operations end; history stays. A process that still runs there is told."""
        known = await self._known(node)
        rows = await self.life.open_on(known.id)
        await self._end_all(known, rows, actor, reason)
        await self.life.remove(known.id, now=self.clock())
        await self._part_with(known, rows)
        return LifeChanged(message="node deregistered", cancelled=[row.op_id for row in rows])

    async def reset_credential(self, node: str) -> LifeChanged:
        """Give the name free: the next machine that registers under it gets it, and waits for approval."""
        known = await self._known(node)
        await self.life.reset_credential(known.id, now=self.clock())
        await self.orders.stop(known.id, StopOrder(why=StopWhy.CREDENTIAL_RESET))
        await self.revocation.enforce()
        said = f"credential reset: the next machine that registers as {known.name} gets the name and waits for approval"
        return await self._changed(known, said, [])

    # by the node itself ---------------------------------------------------------------------------------------

    async def leaving(self, node: NodeView) -> None:
        """About to go: a reboot is not a drain, so its operations wait for it."""
        await self.life.leaving(node.id, now=self.clock())

    async def left(self, node: NodeView, *, boot_id: str = "") -> None:
        await self.life.left(node.id, now=self.clock(), boot_id=boot_id)

    async def stayed(self, node: NodeView) -> None:
        await self.life.stayed(node.id)

    async def tell_if_removed(self, node_id: str) -> None:
        """A process that speaks for a node which is gone."""
        if node_id in await self.life.removed_among([node_id]):
            await self.orders.stop(node_id, StopOrder(why=StopWhy.REMOVED))

    # by the fleet monitor -------------------------------------------------------------------------------------

    async def sweep(self) -> int:
        """End what slipped in beside a drain or a removal; how many there were."""
        stranded = await self.life.stranded()
        for row, is_removed in stranded:
            why = Reason.NODE_REMOVED if is_removed else Reason.NODE_DRAINED
            log.warning("ending a stranded operation", op_id=row.op_id, node=row.node_name, why=why)
            await self._cancel([row], why, by=MONITOR, force=is_removed)
        return len(stranded)

    # ----------------------------------------------------------------------------------------------------------

    async def _part_with(self, node: NodeView, rows: Sequence[OperationView]) -> None:
        """A node at work first hears from the workflow what to stop; any other hears nothing any more."""

        async def stop() -> None:
            await self.orders.stop(node.id, StopOrder(why=StopWhy.REMOVED))

        async def is_told() -> bool:
            return not await self.life.open_on(node.id)

        if node.protocol is not Wire.LOCALAI and any(row.dispatched_at for row in rows):
            self.revocation.enforce_after(is_told, stop)
            return
        await stop()
        await self.revocation.enforce()

    async def _end_all(self, node: NodeView, rows: Sequence[OperationView], actor: str, reason: str) -> None:
        """A node that can be told is told, by the workflow; nobody waits for one that cannot."""
        reachable = node.status in REACHABLE and node.protocol is not Wire.LOCALAI
        tellable = [row for row in rows if reachable and _can_be_told(row)]
        others = [row for row in rows if row not in tellable]
        await self._cancel(tellable, Reason.NODE_REMOVED, by=actor, detail=reason)
        await self._cancel(others, Reason.NODE_REMOVED, by=actor, detail=reason, force=True)

    async def _cancel(
        self, rows: Sequence[OperationView], why: Reason, *, by: str, detail: str = "", force: bool = False
    ) -> None:
        await asyncio.gather(
            *(
                self.runs.cancel(
                    row.workflow_id, CancelRequest(op_id=row.op_id, by=by, why=why, detail=detail, force=force)
                )
                for row in rows
            )
        )

    async def _changed(self, node: NodeView, message: str, cancelled: Sequence[OperationView]) -> LifeChanged:
        after = await self._known(node.id)
        return LifeChanged(message=message, status=after.status, cancelled=[row.op_id for row in cancelled])

    async def _known(self, node: str) -> NodeView:
        known = await self.nodes.find(node)
        if known is None:
            raise UnknownNode(f"There is no node {node}.", node=node)
        return known


def _ends_by_drain(row: OperationView, running: Running) -> bool:
    if row.state in NOT_BEGUN:
        return True
    return running is Running.CANCEL and row.state in ON_THE_NODE and row.kind is not Kind.REMOVE


def _can_be_told(row: OperationView) -> bool:
    """A removal cannot be stopped once it runs, and a cancel that waits for the node has waited long enough."""
    return row.kind is not Kind.REMOVE and row.state is not State.CANCELLING
