"""One node's backends for LocalAI's clients: synchronous removal, and stop."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from nodesmith.api import auditing
from nodesmith.api.auth import Operator
from nodesmith.api.dependencies import Deps, IdempotencyKey
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import respond, responses
from nodesmith.api.wait_for_end import operation_end
from nodesmith.contracts import words
from nodesmith.contracts.http.localai import DeleteBody
from nodesmith.contracts.http.operations import InstallRequest, StopBody
from nodesmith.contracts.http.shared import Message
from nodesmith.domain.errors import NoAnswer
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import State

router = APIRouter(prefix="/api/nodes", tags=["LocalAI"])


@router.post("/{node}/backends/delete", response_model=Message, responses=responses(400, 404, 409, 504))
async def delete_backend(
    node: NodeName, body: DeleteBody, request: Request, deps: Deps, actor: Operator, *, key: IdempotencyKey = None
) -> Message | JSONResponse:
    """Remove a backend and wait up to two minutes. 504: the removal continues under the named job id."""
    removal = InstallRequest(backend=body.backend)
    accepted = await deps.admission.ask(Kind.REMOVE, node, removal, actor=actor, idempotency_key=key)
    after = {"backend": body.backend, "op_id": accepted.jobID}
    auditing.record(request, target=accepted.node, target_id=accepted.node_id, after=after)
    ended = await operation_end(deps, accepted.jobID)
    if ended is None:
        raise NoAnswer(
            f"{body.backend} is still being removed from {node}; operation {accepted.jobID} continues.",
            op_id=accepted.jobID,
        )
    if ended.state is not State.SUCCEEDED:
        message = f"backend deletion failed: {words.describe(ended).sentence}"
        return respond(request, 500, "operation_failed", message, facts={"op_id": ended.op_id, "state": ended.state})
    return Message(message="backend deleted")


@router.post("/{node}/backends/stop", status_code=202, responses=responses(400, 404, 409))
async def stop_backend(node: NodeName, body: StopBody, request: Request, deps: Deps, actor: Operator) -> Message:
    """Stop the processes of a backend, or all of them. The node sends no reply; nothing on its disk changes."""
    del actor  # the audit trail records it
    target = await known_node(deps, node)
    stopped = await deps.backend_stop.stop(target, body)
    auditing.record(request, target=target.name, target_id=target.id, after=body.model_dump(mode="json"))
    return stopped
