"""LocalAI's running models and logs of a node: read from the node on each request, nothing is stored."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from nodesmith.api.auth import Operator, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import responses
from nodesmith.api.running_models import counted
from nodesmith.contracts.http.models import MOST_LINES, LogLine, ModelBody, NodeModel
from nodesmith.contracts.http.shared import Message
from nodesmith.contracts.nats.running_models import LogsQuestion

router = APIRouter(prefix="/api/nodes", tags=["LocalAI"], dependencies=[Depends(viewer)])

Key = Annotated[str, Path(max_length=255, description="Name of a backend or model, or one process: `name#replica`.")]

_REFUSALS = responses(400, 404, 409, 504)


@router.get("/models", response_model_exclude_none=True, responses=responses())
async def list_running_models(deps: Deps) -> list[NodeModel]:
    """Running models of all healthy nodes; a node that does not answer within two seconds is omitted."""
    return await counted(deps, await deps.models.everywhere(await deps.nodes.list()))


@router.get("/{node}/models", response_model_exclude_none=True, responses=_REFUSALS)
async def list_models_of_node(node: NodeName, deps: Deps) -> list[NodeModel]:
    """Running models of one node."""
    return await counted(deps, await deps.models.running(await known_node(deps, node)))


@router.post("/{node}/models/unload", responses=_REFUSALS)
async def unload_model(node: NodeName, body: ModelBody, deps: Deps, _actor: Operator) -> Message:
    """Unload a model, all its replicas, on a node. A model that does not run counts as unloaded."""
    return await deps.models.unload(await known_node(deps, node), body.model_name)


@router.post("/{node}/models/delete", responses=_REFUSALS)
async def delete_model_files(node: NodeName, body: ModelBody, deps: Deps, _actor: Operator) -> Message:
    """Unload a model and delete its files from the node."""
    return await deps.models.delete(await known_node(deps, node), body.model_name)


@router.get("/{node}/backend-logs", responses=_REFUSALS)
async def list_log_keys(node: NodeName, deps: Deps) -> list[str]:
    """LocalAI's list of the processes whose output is kept."""
    return await deps.models.log_keys(await known_node(deps, node))


@router.get("/{node}/backend-logs/{backend}", responses=_REFUSALS)
async def read_log_lines(node: NodeName, backend: Key, deps: Deps) -> list[LogLine]:
    """LocalAI's tail of one process."""
    page = await deps.models.logs(await known_node(deps, node), LogsQuestion(backend=backend, lines=MOST_LINES))
    return [LogLine(text=line) for line in page.lines]
