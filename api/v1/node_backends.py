"""What a node has installed and runs: inventory, stop, models and logs."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Bearer, Operator, Session, operator, still_admitted, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import responses
from nodesmith.api.running_models import counted
from nodesmith.contracts.http.inventory import NodeInventory
from nodesmith.contracts.http.models import (
    LONGEST_WAIT_S,
    MOST_LINES,
    LogsPage,
    ModelBody,
    ModelStopBody,
    ModelStopView,
    NodeModel,
)
from nodesmith.contracts.http.operations import StopBody
from nodesmith.contracts.http.shared import Message, Page
from nodesmith.contracts.nats.running_models import LogsQuestion

router = APIRouter(prefix="/api/v1/nodes/{node}", tags=["backends of a node"], dependencies=[Depends(viewer)])

_BIGGEST = 2**63 - 1

Key = Annotated[str, Path(max_length=255, description="Name of a backend or model, or one process: `name#replica`.")]
Lines = Annotated[int, Query(ge=1, le=MOST_LINES, description="At most this many lines.")]
After = Annotated[
    int | None, Query(ge=0, le=_BIGGEST, alias="cursor", description="Only newer lines: `cursor` of the previous page.")
]
Wait = Annotated[
    float,
    Query(ge=0, le=LONGEST_WAIT_S, description="With a cursor: respond when there is more, or after so many seconds."),
]

_REFUSALS = responses(400, 404, 409, 504)


@router.get("/inventory", responses=responses(400, 404))
async def get_node_inventory(node: NodeName, deps: Deps) -> NodeInventory:
    """What was on the node's disk at the last refresh; also for a node that is away."""
    return await deps.inventory.view(await known_node(deps, node))


@router.get("/backends", responses=responses(400, 404, 504))
async def get_node_backends(node: NodeName, deps: Deps) -> NodeInventory:
    """What is on the node's disk now, read from the node itself; the stored inventory follows."""
    known = await known_node(deps, node)
    await deps.inventory.refresh(known)
    return await deps.inventory.view(known)


@router.post("/inventory/refresh", dependencies=[Depends(operator)], responses=responses(400, 404, 504))
async def refresh_node_inventory(node: NodeName, deps: Deps) -> NodeInventory:
    """Read the node's disk now."""
    known = await known_node(deps, node)
    await deps.inventory.refresh(known)
    return await deps.inventory.view(known)


@router.post("/backends/stop", status_code=202, responses=responses(400, 404, 409))
async def stop_node_backend(node: NodeName, body: StopBody, request: Request, deps: Deps, _actor: Operator) -> Message:
    """Stop the processes of a backend, or all of them. Nothing on the node's disk changes."""
    target = await known_node(deps, node)
    stopped = await deps.backend_stop.stop(target, body)
    auditing.record(request, target=target.name, target_id=target.id, after=body.model_dump(mode="json"))
    return stopped


@router.get("/backends/{backend}/logs", responses=_REFUSALS)
async def read_node_logs(
    node: NodeName,
    backend: Key,
    deps: Deps,
    token: Bearer,
    session: Session,
    *,
    lines: Lines = 200,
    after: After = None,
    wait_s: Wait = 0,
) -> LogsPage:
    """The output of a backend: first the tail; then, with `cursor` and `wait_s`, new lines."""
    question = LogsQuestion(backend=backend, lines=lines, cursor=after, wait_s=wait_s)
    page = await deps.models.logs(await known_node(deps, node), question)
    if wait_s:
        await still_admitted(deps, token, session)
    return page


@router.get("/models", responses=_REFUSALS)
async def list_node_models(node: NodeName, deps: Deps) -> Page[NodeModel]:
    """Running models of one node, read from the node itself."""
    return Page(items=await counted(deps, await deps.models.running(await known_node(deps, node))))


@router.post("/models/unload", responses=_REFUSALS)
async def unload_node_model(node: NodeName, body: ModelBody, deps: Deps, _actor: Operator) -> Message:
    """Unload a model, all its replicas, on a node. A model that does not run counts as unloaded."""
    return await deps.models.unload(await known_node(deps, node), body.model_name)


@router.post("/models/stop", responses=_REFUSALS)
async def stop_node_model(node: NodeName, body: ModelStopBody, deps: Deps, _actor: Operator) -> ModelStopView:
    """Stop one process of a model; responds after it has ended."""
    return await deps.models.stop(await known_node(deps, node), body)


@router.post("/models/delete", responses=_REFUSALS)
async def delete_node_model(node: NodeName, body: ModelBody, deps: Deps, _actor: Operator) -> Message:
    """Unload a model and delete its files from the node."""
    return await deps.models.delete(await known_node(deps, node), body.model_name)
