"""Running models of all nodes."""

from fastapi import APIRouter, Depends, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Operator, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.running_models import counted
from nodesmith.contracts.http.models import ModelBody, NodeModel, UnloadResult, UnloadView
from nodesmith.contracts.http.shared import Page

router = APIRouter(prefix="/api/v1/models", tags=["models"], dependencies=[Depends(viewer)])


@router.get("", responses=responses())
async def list_models(deps: Deps) -> Page[NodeModel]:
    """Running models of all healthy nodes; a node that does not answer within two seconds is omitted."""
    return Page(items=await counted(deps, await deps.models.everywhere(await deps.nodes.list())))


@router.post("/unload", responses=responses(400))
async def unload_model(body: ModelBody, request: Request, deps: Deps, _actor: Operator) -> UnloadView:
    """Unload a model on every node that runs it. A node that fails is named and keeps the model; the others continue.

    Nodes are asked for their running models: one that is away, or does not answer within two seconds, is named too.
    A model that runs nowhere counts as unloaded.
    """
    done = await deps.models.unload_everywhere(await deps.nodes.list(), body.model_name)
    results = (UnloadResult.UNLOADED, UnloadResult.FAILED, UnloadResult.UNKNOWN)
    auditing.record(request, target=body.model_name, after={result: done.named(result) for result in results})
    return done
