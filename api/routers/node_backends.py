"""One node's backends, as LocalAI's clients ask for them: a removal that is waited for, and stop."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from api import auditing
from api.auth import Operator
from api.awaiting import operation_end
from api.known import Node, known_node
from api.parts import IdempotencyKey, PartsOf
from api.problems import respond, responses
from contracts.http import Message
from contracts.localai_http import DeleteBody
from contracts.operation_http import InstallRequest, StopBody
from domain.errors import NoAnswer
from domain.operation import Kind, State

router = APIRouter(prefix="/api/nodes", tags=["LocalAI"])


@router.post("/{node}/backends/delete", response_model=Message, responses=responses(400, 404, 409, 504))
async def delete_backend(
    node: Node, body: DeleteBody, request: Request, parts: PartsOf, actor: Operator, *, key: IdempotencyKey = None
) -> Message | JSONResponse:
    """Remove a backend and wait up to two minutes for the node. 504: it goes on, under the job id that is named."""
    asked = InstallRequest(backend=body.backend)
    accepted = await parts.admission.ask(Kind.REMOVE, node, asked, actor=actor, idempotency_key=key)
    after = {"backend": body.backend, "op_id": accepted.jobID}
    auditing.tell(request, target=accepted.node, target_id=accepted.node_id, after=after)
    ended = await operation_end(parts, accepted.jobID)
    if ended is None:
        raise NoAnswer(
            f"{body.backend} is still being removed from {node}: operation {accepted.jobID} goes on.",
            op_id=accepted.jobID,
        )
    if ended.state is not State.SUCCEEDED:
        said = f"backend deletion failed: {ended.message}"
        return respond(request, 500, "operation_failed", said, facts={"op_id": ended.op_id, "state": ended.state})
    return Message(message="backend deleted")


@router.post("/{node}/backends/stop", status_code=202, responses=responses(400, 404, 409))
async def stop_backend(node: Node, body: StopBody, request: Request, parts: PartsOf, actor: Operator) -> Message:
    """Stop what runs of a backend, or everything. The node is told and does not answer; nothing on its disk changes."""
    del actor  # the audit trail knows it
    target = await known_node(parts, node)
    stopped = await parts.stopping.stop(target, body)
    auditing.tell(request, target=target.name, target_id=target.id, after=body.model_dump(mode="json"))
    return stopped
