"""Verified writes of operations: an outcome is stored only with a valid signature of its node."""

from dataclasses import dataclass
from typing import Protocol

from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.contracts.temporal.operations import Projection, RecordResult
from nodesmith.domain.errors import BadSignature
from nodesmith.domain.operation import ENDED, Reason, State
from nodesmith.services.models.ports import ReplicaRecords
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
    replicas: ReplicaRecords | None = None

    async def record(self, *transitions: Projection, only_unsent: bool = False) -> RecordResult:
        """Write the transitions; raises `BadSignature` and writes nothing if a node did not sign its outcome.

        The end of a load or unload is passed on to its replica. A write that is repeated after a crash passes it on
        again, so that none is lost.
        """
        rows = [await self._proven(each) for each in transitions]
        result = await self.operations.record(*rows, only_unsent=only_unsent)
        last = rows[-1]
        is_end = last.state in ENDED and (result.written or (result.end is not None and result.end.state is last.state))
        if is_end and self.replicas is not None and last.request.wanted.kind.rules.locks_replica:
            await _end_replica(self.replicas, last)
        return result

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


async def _end_replica(replicas: ReplicaRecords, row: Projection) -> None:
    """Tell what became of the replica: the node's address and report number, or why there is none."""
    request, outcome = row.request, row.outcome
    key = request.wanted.backend
    was_never_loaded = row.state is State.CANCELLED and not request.wanted.kind.rules.removes
    if row.state is State.SUCCEEDED and outcome is not None and key in outcome.addresses:
        await replicas.loaded(request.op_id, outcome.addresses[key], outcome.report)
    elif row.state is State.SUCCEEDED or was_never_loaded:
        await replicas.gone(request.op_id)
    else:
        await replicas.failed(request.op_id, row.reason or Reason.UNKNOWN)
