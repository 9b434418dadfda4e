"""Lifecycle of a node: drain, resume, leave, remove, and the effect of each on its operations."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog

from nodesmith.contracts.nats.presence import StopOrder, StopWhy
from nodesmith.contracts.temporal.operations import CancelRequest
from nodesmith.domain.errors import UnknownNode
from nodesmith.domain.node import DrainPolicy, Node, NodeStatus
from nodesmith.domain.node import Protocol as Wire
from nodesmith.domain.operation import ON_NODE, Operation, Reason, State
from nodesmith.services.ports import NodeRegistry

log = structlog.get_logger()

NOT_DISPATCHED = frozenset({State.QUEUED, State.WAITING})
REACHABLE = frozenset({NodeStatus.HEALTHY, NodeStatus.DRAINING})
MONITOR = "fleet monitor"


@dataclass(frozen=True, kw_only=True)
class LifecycleChange:
    """What a change of a node's lifecycle did."""

    message: str
    status: NodeStatus | None = None
    """status of the node afterwards; None: it was removed"""
    cancelled: Sequence[str] = ()
    """ids of the operations that were cancelled"""


class NodeLifecycle(Protocol):
    """The stored lifecycle of a node, and the operations that a change affects."""

    async def drain(self, node_id: str, *, now: datetime) -> None: ...
    async def resume(self, node_id: str, *, now: datetime) -> None: ...
    async def remove(self, node_id: str, *, now: datetime) -> None: ...
    async def reset_credential(self, node_id: str, *, now: datetime) -> None: ...
    async def leaving(self, node_id: str, *, now: datetime) -> None: ...
    async def left(self, node_id: str, *, now: datetime, boot_id: str = "") -> None: ...
    async def stayed(self, node_id: str) -> None: ...
    async def removed_among(self, node_ids: Sequence[str]) -> Sequence[str]: ...
    async def open_on(self, node_id: str) -> Sequence[Operation]: ...
    async def stranded(self) -> Sequence[tuple[Operation, bool]]: ...


class CancelSignals(Protocol):
    """The runs of operations: returns False when no such run is open, raises `ServiceUnavailable` without Temporal."""

    async def cancel(self, workflow_id: str, request: CancelRequest) -> bool: ...


class Orders(Protocol):
    """One-way messages to the process of a node."""

    async def stop(self, node_id: str, order: StopOrder) -> None: ...


class CredentialRevoker(Protocol):
    """Makes the NATS server reject revoked credentials."""

    async def enforce(self) -> None: ...
    def enforce_after(self, is_done: Callable[[], Awaitable[bool]], then: Callable[[], Awaitable[None]]) -> None: ...


@dataclass(frozen=True)
class Lifecycle:
    nodes: NodeRegistry
    table: NodeLifecycle
    runs: CancelSignals
    orders: Orders
    clock: Callable[[], datetime]
    revocation: CredentialRevoker

    # by an admin ----------------------------------------------------------------------------------------------

    async def drain(self, node: str, *, running: DrainPolicy, actor: str, reason: str = "") -> LifecycleChange:
        """Stop new work. Undispatched operations end; dispatched ones finish or are cancelled, as `running` says."""
        known = await self._known(node)
        await self.table.drain(known.id, now=self.clock())
        ending = [row for row in await self.table.open_on(known.id) if _ends_by_drain(row, running)]
        await self._cancel(ending, Reason.NODE_DRAINED, by=actor, detail=reason)
        return await self._changed(known, "node set to draining", ending)

    async def resume(self, node: str) -> LifecycleChange:
        """End a drain; a node that was never approved stays pending."""
        known = await self._known(node)
        await self.table.resume(known.id, now=self.clock())
        return await self._changed(known, "node resumed", [])

    async def remove(self, node: str, *, actor: str, reason: str = "") -> LifecycleChange:
        """Remove the node and end its operations; the history stays. A process that still runs there is stopped."""
        known = await self._known(node)
        rows = await self.table.open_on(known.id)
        await self._end_all(known, rows, actor, reason)
        await self.table.remove(known.id, now=self.clock())
        await self._disconnect(known, rows)
        return LifecycleChange(message="node deregistered", cancelled=[row.op_id for row in rows])

    async def reset_credential(self, node: str) -> LifecycleChange:
        """Release the name: the next machine that registers under it gets it, and waits for approval."""
        known = await self._known(node)
        await self.table.reset_credential(known.id, now=self.clock())
        await self.orders.stop(known.id, StopOrder(why=StopWhy.CREDENTIAL_RESET))
        await self.revocation.enforce()
        outcome = f"the next machine that registers as {known.name} gets the name and waits for approval"
        return await self._changed(known, f"credential reset: {outcome}", [])

    # by the node itself ---------------------------------------------------------------------------------------

    async def leaving(self, node: Node) -> None:
        """The node announces its shutdown. A reboot is not a drain, so its operations wait for it."""
        await self.table.leaving(node.id, now=self.clock())

    async def left(self, node: Node, *, boot_id: str = "") -> None:
        await self.table.left(node.id, now=self.clock(), boot_id=boot_id)

    async def stayed(self, node: Node) -> None:
        await self.table.stayed(node.id)

    async def stop_if_removed(self, node_id: str) -> None:
        """Stop a process that still acts for a removed node."""
        if node_id in await self.table.removed_among([node_id]):
            await self.orders.stop(node_id, StopOrder(why=StopWhy.REMOVED))

    # by the fleet monitor -------------------------------------------------------------------------------------

    async def sweep(self) -> int:
        """End operations that were admitted during a drain or removal; returns how many."""
        stranded = await self.table.stranded()
        for row, is_removed in stranded:
            why = Reason.NODE_REMOVED if is_removed else Reason.NODE_DRAINED
            log.warning("ending a stranded operation", op_id=row.op_id, node=row.node_name, why=why)
            await self._cancel([row], why, by=MONITOR, force=is_removed)
        return len(stranded)

    # ----------------------------------------------------------------------------------------------------------

    async def _disconnect(self, node: Node, rows: Sequence[Operation]) -> None:
        """Stop the node and revoke its credential; if it has work, only after the workflow has sent the cancels."""

        async def stop() -> None:
            await self.orders.stop(node.id, StopOrder(why=StopWhy.REMOVED))

        async def is_done() -> bool:
            return not await self.table.open_on(node.id)

        if node.protocol is not Wire.LOCALAI and any(row.dispatched_at for row in rows):
            self.revocation.enforce_after(is_done, stop)
            return
        await stop()
        await self.revocation.enforce()

    async def _end_all(self, node: Node, rows: Sequence[Operation], actor: str, reason: str) -> None:
        """Cancel all operations; by force where the node cannot be reached or cannot stop the work."""
        reachable = node.status in REACHABLE and node.protocol is not Wire.LOCALAI
        stoppable = [row for row in rows if reachable and _is_stoppable(row)]
        others = [row for row in rows if row not in stoppable]
        await self._cancel(stoppable, Reason.NODE_REMOVED, by=actor, detail=reason)
        await self._cancel(others, Reason.NODE_REMOVED, by=actor, detail=reason, force=True)

    async def _cancel(
        self, rows: Sequence[Operation], why: Reason, *, by: str, detail: str = "", force: bool = False
    ) -> None:
        await asyncio.gather(
            *(
                self.runs.cancel(
                    row.workflow_id, CancelRequest(op_id=row.op_id, by=by, why=why, detail=detail, force=force)
                )
                for row in rows
            )
        )

    async def _changed(self, node: Node, message: str, cancelled: Sequence[Operation]) -> LifecycleChange:
        after = await self._known(node.id)
        return LifecycleChange(message=message, status=after.status, cancelled=[row.op_id for row in cancelled])

    async def _known(self, node: str) -> Node:
        known = await self.nodes.find(node)
        if known is None:
            raise UnknownNode(f"There is no node {node}.", node=node)
        return known


def _ends_by_drain(row: Operation, running: DrainPolicy) -> bool:
    if row.state in NOT_DISPATCHED:
        return True
    return running is DrainPolicy.CANCEL and row.state in ON_NODE and row.is_cancellable


def _is_stoppable(row: Operation) -> bool:
    """Whether the node can stop it: not a removal that runs, nor an operation that is being cancelled already."""
    return row.kind.rules.cancellable_on_node and row.state is not State.CANCELLING
