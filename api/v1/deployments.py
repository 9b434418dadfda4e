"""Deployments: models that the scheduler keeps loaded, their replicas, and calls of routers."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Operator, call_router, require_uri_right, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import responses
from nodesmith.api.views.deployments import (
    deployment_detail,
    deployment_view,
    load_status,
    placement_view,
    planned_move,
    replica_view,
)
from nodesmith.contracts.http.deployments import (
    DeploymentDetail,
    DeploymentDiff,
    DeploymentRequest,
    DeploymentView,
    PlacementView,
    ScaleBody,
)
from nodesmith.contracts.http.replicas import (
    AcquireBody,
    DrainPreview,
    HolderView,
    LoadStatus,
    ReleaseBody,
    Released,
    ReplicaView,
)
from nodesmith.contracts.http.shared import Message, Page
from nodesmith.domain.deployment import LONGEST_NAME
from nodesmith.domain.model_errors import NoReplica, UnknownModel

router = APIRouter(prefix="/api/v1", tags=["deployments"], dependencies=[Depends(viewer)])

ModelName = Annotated[
    str, Path(min_length=1, max_length=LONGEST_NAME, description="Name of the model.", examples=["llama-3-8b"])
]
Holder = Annotated[str, Path(min_length=1, max_length=255, description="Name of the holder.")]
Why = Annotated[str, Query(max_length=500, description="Reason for the change, kept in the audit trail.")]


@router.get("/deployments", responses=responses())
async def list_deployments(deps: Deps) -> Page[DeploymentView]:
    """All deployments by name, with the numbers of their replicas."""
    return Page(items=[deployment_view(*found) for found in await deps.deployments.with_replicas()])


@router.post("/deployments/{name:path}/diff", responses=responses(400, 404, 409))
async def diff_deployment(
    name: ModelName, body: DeploymentRequest, request: Request, deps: Deps, _actor: Operator
) -> DeploymentDiff:
    """What `PUT` with the same body would change; changes nothing, and refuses what `PUT` would refuse."""
    auditing.record_nothing(request)
    return await deps.model_service.diff(name, body)


@router.post("/deployments/{name:path}/scale", responses=responses(400, 404))
async def scale_deployment(name: ModelName, body: ScaleBody, deps: Deps, _actor: Operator) -> DeploymentDetail:
    """Change how many replicas run; everything else stays."""
    await deps.model_service.scale(name, body.min_replicas, body.max_replicas)
    return await _detail(deps, name)


@router.post(
    "/deployments/{name:path}/acquire", dependencies=[Depends(call_router)], responses=responses(400, 404, 503)
)
async def acquire_replica(name: ModelName, body: AcquireBody, deps: Deps) -> ReplicaView:
    """Choose the replica for one call of a router, and count the call until it is released.

    Without a loaded replica: 503 with Retry-After, and the scheduler loads one. A holder that is silent for 60 seconds
    is forgotten with its calls; acquire, release and `PUT /api/v1/holders/{holder}` prove that it lives.
    """
    replica = await deps.call_holds.acquire(name, body.holder, prefer=body.prefer)
    if replica is not None:
        return replica_view(replica, await deps.deployments.node_names([replica]))
    if not await deps.deployments.want(name):
        raise UnknownModel(f"There is no deployment {name}.", model=name)
    raise NoReplica(f"No replica of {name} is loaded; the scheduler was asked for one.", model=name)


@router.post("/deployments/{name:path}/release", dependencies=[Depends(call_router)], responses=responses(400))
async def release_replica(name: ModelName, body: ReleaseBody, deps: Deps) -> Released:  # noqa: ARG001 - of the path
    """End one call. A repeated release changes nothing."""
    return Released(released=await deps.call_holds.release(body.holder, body.replica_id))


@router.put("/holders/{holder}", dependencies=[Depends(call_router)], responses=responses(400))
async def renew_holder(holder: Holder, deps: Deps) -> HolderView:
    """Prove that a holder lives; at least once a minute while it has open calls."""
    return HolderView(holder=holder, known=await deps.call_holds.renew(holder))


@router.delete("/holders/{holder}", dependencies=[Depends(call_router)], responses=responses(400))
async def delete_holder(holder: Holder, deps: Deps) -> HolderView:
    """The router ends: none of its calls is open any more."""
    return HolderView(holder=holder, known=await deps.call_holds.leave(holder))


@router.get("/deployments/{name:path}/explain", responses=responses(400, 404))
async def explain_deployment(name: ModelName, deps: Deps) -> PlacementView:
    """Where the next replica would go, why nowhere else, and what the scheduler would do now."""
    return placement_view(name, await deps.model_service.explain(name))


@router.get("/nodes/{node}/drain-preview", responses=responses(400, 404))
async def preview_node_drain(node: NodeName, deps: Deps) -> DrainPreview:
    """Which replicas would move if this node were drained, and where to; changes nothing."""
    moves = await deps.model_service.drain_preview((await known_node(deps, node)).id)
    return DrainPreview(moves=[planned_move(each) for each in moves])


@router.get("/deployments/{name:path}/replicas", responses=responses(400, 404))
async def list_replicas(name: ModelName, deps: Deps) -> Page[ReplicaView]:
    """The replicas of a model."""
    return Page(items=(await _detail(deps, name)).replicas)


@router.get("/deployments/{name:path}/load-status", responses=responses(400, 404))
async def get_load_status(name: ModelName, deps: Deps) -> LoadStatus:
    """How far the load of a model is; 404 if it is not being loaded."""
    return await model_load_status(deps, name)


@router.get("/deployments/{name:path}", responses=responses(400, 404))
async def get_deployment(name: ModelName, deps: Deps) -> DeploymentDetail:
    """One deployment with its replicas."""
    return await _detail(deps, name)


@router.put("/deployments/{name:path}", responses=responses(400, 404, 409))
async def set_deployment(
    name: ModelName, body: DeploymentRequest, request: Request, deps: Deps, _actor: Operator
) -> DeploymentDetail:
    """Deploy a model, or change it. What is loaded changes: a new revision, loaded before the old one is unloaded.

    Refused: a backend that nobody has, a selector that matches no node, more memory than any matching node has.
    """
    for file in body.files:
        require_uri_right(request, file.uri)
    deployed = await deps.model_service.deploy(name, body)
    auditing.record(request, target=name, after={"revision": deployed.revision, "backend": body.backend})
    return await _detail(deps, name)


@router.delete("/deployments/{name:path}", responses=responses(400, 404))
async def delete_deployment(
    name: ModelName, request: Request, deps: Deps, _actor: Operator, reason: Why = ""
) -> Message:
    """Remove a deployment. Its loads are cancelled, its replicas unloaded when their calls have ended; files stay."""
    await deps.model_service.remove(name)
    auditing.record(request, target=name, **({"reason": reason} if reason else {}))
    return Message(message=f"deployment {name} removed; its replicas are unloaded")


async def model_load_status(deps: Deps, name: str) -> LoadStatus:
    found = await deps.deployments.loading(name)
    if found is None:
        raise UnknownModel(f"{name} is not being loaded.", model=name)
    return load_status(*found)


async def _detail(deps: Deps, name: str) -> DeploymentDetail:
    found = await deps.deployments.detail(name)
    if found is None:
        raise UnknownModel(f"There is no deployment {name}.", model=name)
    return deployment_detail(*found)
