"""A model, wherever it runs."""

from fastapi import APIRouter, Request

from api import auditing
from api.auth import Operator
from api.parts import PartsOf
from api.problems import responses
from contracts.models_http import ModelBody, Unloading, UnloadView

router = APIRouter(prefix="/api/models", tags=["models and logs"])


@router.post("/unload", responses=responses(400))
async def unload_everywhere(body: ModelBody, request: Request, parts: PartsOf, _actor: Operator) -> UnloadView:
    """Free what a model holds on every node that has it. A node that fails is named and keeps it; the others go on.

    Nodes are asked what runs on them: one that is away, or does not say within two seconds, is named too. A model that
    runs nowhere is unloaded already.
    """
    done = await parts.models.unload_everywhere(await parts.nodes.list(), body.model_name)
    results = (Unloading.UNLOADED, Unloading.FAILED, Unloading.UNKNOWN)
    auditing.tell(request, target=body.model_name, after={result: done.named(result) for result in results})
    return done
