"""Transitions as a workflow would write them."""

from datetime import timedelta
from typing import Any

from nodesmith.contracts.temporal.operations import Intent, OperationRequest, Projection, operation_workflow_id
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.operation import State
from tests.store.clock import NOON


def a_request(*, op_id: str = "", node_id: str = "n1", backend: str = "echo", **facts: Any) -> OperationRequest:
    return OperationRequest(
        op_id=op_id or new_op_id(),
        node_id=node_id,
        node_name=f"{node_id}-name",
        wanted=Intent(backend=backend, family=backend, version="1", uri="/artifacts/echo-1.tar.gz", sha256="ab" * 32),
        requested_by="admin",
        created_at=NOON,
        **facts,
    )


def transition(
    request: OperationRequest, state: State, *, at: float = 1, seq: int = 1, run_id: str = "run-1", **facts: Any
) -> Projection:
    """`at` counts seconds after noon."""
    return Projection(
        request=request,
        workflow_id=operation_workflow_id(request.node_id, request.wanted.family),
        run_id=run_id,
        at=NOON + timedelta(seconds=at),
        seq=seq,
        state=state,
        **facts,
    )
