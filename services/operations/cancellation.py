"""Cancellation: signals the run; the workflow then sends the cancel to the node."""

from dataclasses import dataclass

from nodesmith.contracts import words
from nodesmith.contracts.nats.messages import CancelMode
from nodesmith.contracts.temporal.operations import CancelRequest
from nodesmith.domain.errors import NotCancellable, OperationEnded, UnknownOperation
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import ENDED, Operation
from nodesmith.services.ports import NodeRegistry, OperationRuns, Operations


@dataclass(frozen=True)
class Cancellation:
    nodes: NodeRegistry
    operations: Operations
    runs: OperationRuns

    async def cancel(
        self,
        op_id: str,
        *,
        actor: str,
        reason: str = "",
        mode: CancelMode = CancelMode.DISCARD,
        force: bool = False,
    ) -> str:
        """Return as soon as Temporal has accepted the signal; a second cancel changes nothing.

        Returns what this cancel cannot do; empty if there is nothing.
        """
        row = await self.operations.find(op_id)
        if row is None:
            raise UnknownOperation(f"There is no operation {op_id}.", op_id=op_id)
        if row.state in ENDED:
            raise _ended(row)
        if not row.is_cancellable and not force:
            raise NotCancellable(f"Operation {op_id} is removing {row.backend} from {row.node_name} already.")
        request = CancelRequest(op_id=op_id, by=actor, detail=reason, mode=mode, force=force)
        if not await self.runs.cancel(row.workflow_id, request):
            raise _ended(await self.operations.find(op_id) or row)
        return await self._localai_note(row)

    async def _localai_note(self, row: Operation) -> str:
        node = await self.nodes.find(row.node_id)
        if row.dispatched_at is not None and node is not None and node.protocol is Protocol.LOCALAI:
            return f"{row.node_name} is a LocalAI worker and cannot be interrupted: it finishes what it has begun."
        return ""


def _ended(row: Operation) -> OperationEnded:
    return OperationEnded(
        f"Operation {row.op_id} has ended already: {words.describe(row).sentence}.", op_id=row.op_id, state=row.state
    )
