"""What runs on a node and what it writes: asked of the node at that moment, nothing of it is stored."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from api.auth import Operator, viewer
from api.known import Node, known_node
from api.parts import PartsOf
from api.problems import responses
from contracts.http import Message
from contracts.messages import LogsQuestion
from contracts.models_http import (
    LONGEST_WAIT_S,
    MOST_LINES,
    LogLine,
    LogsPage,
    ModelBody,
    ModelStopBody,
    ModelStopView,
    NodeModel,
)

router = APIRouter(prefix="/api/nodes", tags=["models and logs"], dependencies=[Depends(viewer)])

_BIGGEST = 2**63 - 1

Key = Annotated[str, Path(max_length=255, description="Name of a backend or model, or one process: `name#replica`.")]
Lines = Annotated[int, Query(ge=1, le=MOST_LINES, description="At most so many.")]
Cursor = Annotated[
    int | None, Query(ge=0, le=_BIGGEST, description="Only what came after it: `cursor` of the answer before.")
]
Wait = Annotated[
    float,
    Query(ge=0, le=LONGEST_WAIT_S, description="With a cursor: answer as soon as there is more, or after so long."),
]

_REFUSALS = responses(400, 404, 409, 504)


@router.get("/models", response_model_exclude_none=True, responses=responses())
async def list_all_models(parts: PartsOf) -> list[NodeModel]:
    """What runs on all healthy nodes; a node that does not answer within two seconds is left out."""
    return await parts.models.everywhere(await parts.nodes.list())


@router.get("/{node}/models", response_model_exclude_none=True, responses=_REFUSALS)
async def list_models(node: Node, parts: PartsOf) -> list[NodeModel]:
    """What runs on one node."""
    return await parts.models.running(await known_node(parts, node))


@router.post("/{node}/models/unload", responses=_REFUSALS)
async def unload_model(node: Node, body: ModelBody, parts: PartsOf, _actor: Operator) -> Message:
    """Free what a model holds on a node, all its replicas. What does not run is unloaded already."""
    return await parts.models.unload(await known_node(parts, node), body.model_name)


@router.post("/{node}/models/stop", responses=_REFUSALS)
async def stop_model(node: Node, body: ModelStopBody, parts: PartsOf, _actor: Operator) -> ModelStopView:
    """End one process of a model; answers after its end."""
    return await parts.models.stop(await known_node(parts, node), body)


@router.post("/{node}/models/delete", responses=_REFUSALS)
async def delete_model(node: Node, body: ModelBody, parts: PartsOf, _actor: Operator) -> Message:
    """Unload a model and delete its files from the node."""
    return await parts.models.delete(await known_node(parts, node), body.model_name)


@router.get("/{node}/backends/{backend}/logs", responses=_REFUSALS)
async def read_logs(
    node: Node, backend: Key, parts: PartsOf, *, lines: Lines = 200, cursor: Cursor = None, wait_s: Wait = 0
) -> LogsPage:
    """What a backend wrote: the tail; then, with `cursor` and `wait_s`, whatever comes."""
    question = LogsQuestion(backend=backend, lines=lines, cursor=cursor, wait_s=wait_s)
    return await parts.models.logs(await known_node(parts, node), question)


@router.get("/{node}/backend-logs", tags=["LocalAI"], responses=_REFUSALS)
async def list_log_keys(node: Node, parts: PartsOf) -> list[str]:
    """LocalAI's list of the processes whose output is kept."""
    return await parts.models.log_keys(await known_node(parts, node))


@router.get("/{node}/backend-logs/{backend}", tags=["LocalAI"], responses=_REFUSALS)
async def read_log_lines(node: Node, backend: Key, parts: PartsOf) -> list[LogLine]:
    """LocalAI's tail of one process."""
    page = await parts.models.logs(await known_node(parts, node), LogsQuestion(backend=backend, lines=MOST_LINES))
    return [LogLine(text=line) for line in page.lines]
