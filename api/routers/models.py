"""A model on all nodes that run it."""

from fastapi import APIRouter, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Operator
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.contracts.http.models import ModelBody, UnloadResult, UnloadView

router = APIRouter(prefix="/api/models", tags=["models and logs"])


@router.post("/unload", responses=responses(400))
async def unload_everywhere(body: ModelBody, request: Request, deps: Deps, _actor: Operator) -> UnloadView:
    """Unload a model on every node that runs it. A node that fails is named and keeps the model; the others continue.

    Nodes are asked for their running models: one that is away, or does not answer within two seconds, is named too.
    A model that runs nowhere counts as unloaded.
    """
    done = await deps.models.unload_everywhere(await deps.nodes.list(), body.model_name)
    results = (UnloadResult.UNLOADED, UnloadResult.FAILED, UnloadResult.UNKNOWN)
    auditing.record(request, target=body.model_name, after={result: done.named(result) for result in results})
    return done
