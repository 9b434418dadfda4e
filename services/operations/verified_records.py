"""Verified writes of operations: an outcome is stored only with a valid signature of its node."""

from dataclasses import dataclass
from typing import Protocol

from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.contracts.temporal.operations import Projection, RecordResult
from nodesmith.domain.errors import BadSignature
from nodesmith.domain.operation import State
from nodesmith.services.ports import Operations


class OutcomeProofs(Protocol):
    """Verifies outcomes; raises `BadSignature` unless that node signed exactly this outcome of that operation."""

    async def verify_outcome(self, node_id: str, op_id: str, outcome: Outcome) -> Outcome: ...
    async def signs(self, node_id: str) -> bool: ...


@dataclass(frozen=True)
class VerifiedRecords:
    """Verifies the signature where the row is written, so neither Temporal nor a worker has to be trusted."""

    operations: Operations
    proofs: OutcomeProofs

    async def record(self, *transitions: Projection, only_unsent: bool = False) -> RecordResult:
        """Write the transitions; raises `BadSignature` and writes nothing if a node did not sign its outcome."""
        rows = [await self._proven(each) for each in transitions]
        return await self.operations.record(*rows, only_unsent=only_unsent)

    async def _proven(self, row: Projection) -> Projection:
        request, outcome = row.request, row.outcome
        if outcome is None:
            if row.state is State.SUCCEEDED and await self.proofs.signs(request.node_id):
                raise BadSignature(f"The node {request.node_name} reported no outcome.", op_id=request.op_id)
            return row
        proven = await self.proofs.verify_outcome(request.node_id, request.op_id, outcome)
        if row.state is State.SUCCEEDED and proven.result is not Result.SUCCEEDED:
            raise BadSignature(f"The node {request.node_name} reported {proven.result}.", op_id=request.op_id)
        return row.model_copy(update={"outcome": proven})
