"""Running models and logs of a node: read from the node on each request, nothing is stored."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from nodesmith.api.auth import Bearer, Operator, Session, still_admitted, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import responses
from nodesmith.contracts.http.models import (
    LONGEST_WAIT_S,
    MOST_LINES,
    LogLine,
    LogsPage,
    ModelBody,
    ModelStopBody,
    ModelStopView,
    NodeModel,
)
from nodesmith.contracts.http.shared import Message
from nodesmith.contracts.nats.running_models import LogsQuestion

router = APIRouter(prefix="/api/nodes", tags=["models and logs"], dependencies=[Depends(viewer)])

_BIGGEST = 2**63 - 1

Key = Annotated[str, Path(max_length=255, description="Name of a backend or model, or one process: `name#replica`.")]
Lines = Annotated[int, Query(ge=1, le=MOST_LINES, description="At most this many lines.")]
Cursor = Annotated[
    int | None, Query(ge=0, le=_BIGGEST, description="Only newer lines: `cursor` of the previous response.")
]
Wait = Annotated[
    float,
    Query(ge=0, le=LONGEST_WAIT_S, description="With a cursor: respond when there is more, or after so many seconds."),
]

_REFUSALS = responses(400, 404, 409, 504)


@router.get("/models", response_model_exclude_none=True, responses=responses())
async def list_all_models(deps: Deps) -> list[NodeModel]:
    """Running models of all healthy nodes; a node that does not answer within two seconds is omitted."""
    return await deps.models.everywhere(await deps.nodes.list())


@router.get("/{node}/models", response_model_exclude_none=True, responses=_REFUSALS)
async def list_models(node: NodeName, deps: Deps) -> list[NodeModel]:
    """Running models of one node."""
    return await deps.models.running(await known_node(deps, node))


@router.post("/{node}/models/unload", responses=_REFUSALS)
async def unload_model(node: NodeName, body: ModelBody, deps: Deps, _actor: Operator) -> Message:
    """Unload a model, all its replicas, on a node. A model that does not run counts as unloaded."""
    return await deps.models.unload(await known_node(deps, node), body.model_name)


@router.post("/{node}/models/stop", responses=_REFUSALS)
async def stop_model(node: NodeName, body: ModelStopBody, deps: Deps, _actor: Operator) -> ModelStopView:
    """Stop one process of a model; responds after it has ended."""
    return await deps.models.stop(await known_node(deps, node), body)


@router.post("/{node}/models/delete", responses=_REFUSALS)
async def delete_model(node: NodeName, body: ModelBody, deps: Deps, _actor: Operator) -> Message:
    """Unload a model and delete its files from the node."""
    return await deps.models.delete(await known_node(deps, node), body.model_name)


@router.get("/{node}/backends/{backend}/logs", responses=_REFUSALS)
async def read_logs(
    node: NodeName,
    backend: Key,
    deps: Deps,
    token: Bearer,
    session: Session,
    *,
    lines: Lines = 200,
    cursor: Cursor = None,
    wait_s: Wait = 0,
) -> LogsPage:
    """The output of a backend: first the tail; then, with `cursor` and `wait_s`, new lines."""
    question = LogsQuestion(backend=backend, lines=lines, cursor=cursor, wait_s=wait_s)
    page = await deps.models.logs(await known_node(deps, node), question)
    if wait_s:
        await still_admitted(deps, token, session)
    return page


@router.get("/{node}/backend-logs", tags=["LocalAI"], responses=_REFUSALS)
async def list_log_keys(node: NodeName, deps: Deps) -> list[str]:
    """LocalAI's list of the processes whose output is kept."""
    return await deps.models.log_keys(await known_node(deps, node))


@router.get("/{node}/backend-logs/{backend}", tags=["LocalAI"], responses=_REFUSALS)
async def read_log_lines(node: NodeName, backend: Key, deps: Deps) -> list[LogLine]:
    """LocalAI's tail of one process."""
    page = await deps.models.logs(await known_node(deps, node), LogsQuestion(backend=backend, lines=MOST_LINES))
    return [LogLine(text=line) for line in page.lines]
