"""Views of deployments and replicas."""

from collections.abc import Mapping, Sequence

from nodesmith.contracts.http.deployments import (
    DeploymentDetail,
    DeploymentStatus,
    DeploymentView,
    FileShape,
    NodeVerdict,
    PlacementView,
)
from nodesmith.contracts.http.models import NodeModel
from nodesmith.contracts.http.replicas import LoadStatus, PlannedMove, ReplicaView
from nodesmith.domain.deployment import Deployment
from nodesmith.domain.operation import Operation, Phase, State
from nodesmith.domain.replica import ENDING, STARTING, Replica, ReplicaState
from nodesmith.services.models.deploying import Explanation, Move

CHOSEN = "chosen"
_LOADING_STATES = {Phase.DOWNLOADING: "staging", Phase.VERIFYING: "staging", Phase.STARTING: "loading"}


def deployment_view(deployment: Deployment, replicas: Sequence[Replica]) -> DeploymentView:
    return DeploymentView(**_fields(deployment, replicas))


def deployment_detail(
    deployment: Deployment, replicas: Sequence[Replica], names: Mapping[str, str]
) -> DeploymentDetail:
    return DeploymentDetail(**_fields(deployment, replicas), replicas=[replica_view(each, names) for each in replicas])


def replica_view(replica: Replica, names: Mapping[str, str]) -> ReplicaView:
    view = ReplicaView.model_validate(replica, from_attributes=True)
    view.node_name = names.get(replica.node_id, "")
    return view


def with_calls(models: Sequence[NodeModel], replicas: Mapping[tuple[str, str, int], Replica]) -> list[NodeModel]:
    """The reported processes, with what routers count about those that are replicas."""

    def counted(model: NodeModel) -> NodeModel:
        replica = replicas.get((model.node_id, model.model_name, model.replica_index))
        if replica is None:
            return model
        state = ReplicaState.DRAINING.value if replica.state in ENDING else model.state
        return model.model_copy(update={"in_flight": replica.in_flight, "last_used": replica.last_used, "state": state})

    return [counted(model) for model in models]


def placement_view(name: str, explanation: Explanation) -> PlacementView:
    choice, refusals = explanation.placement.choice, explanation.placement.refusals
    verdicts = [
        NodeVerdict(node_id=each.node_id, node_name=each.node_name, verdict=each.why, detail=each.words)
        for each in refusals
    ]
    if choice is not None:
        first = NodeVerdict(
            node_id=choice.node_id, node_name=choice.node_name, verdict=CHOSEN, detail=choice.detail or "it fits"
        )
        verdicts.insert(0, first)
    return PlacementView(
        name=name,
        chosen=choice.node_name if choice else None,
        nodes=verdicts,
        actions=_actions(name, explanation),
    )


def planned_move(move: Move) -> PlannedMove:
    choice = move.placement.choice
    detail = (
        choice.detail if choice else "; ".join(f"{each.node_name}: {each.words}" for each in move.placement.refusals)
    )
    return PlannedMove(
        model=move.replica.model, index=move.replica.index, to=choice.node_name if choice else None, detail=detail
    )


def load_status(operation: Operation, deployment: Deployment) -> LoadStatus:
    """What LocalAI's clients show while a model is loaded."""
    gauge, files = operation.gauge, len(deployment.spec.files)
    if operation.state in (State.QUEUED, State.WAITING):
        state = "installing" if operation.detail else "pending"
    else:
        state = _LOADING_STATES.get(gauge.phase or Phase.UNKNOWN, "installing")
    return LoadStatus(
        model=deployment.name,
        state=state,
        node=operation.node_name,
        progress=gauge.percentage,
        bytes_sent=gauge.bytes_done,
        total_bytes=gauge.bytes_total,
        file_index=min(files, 1 + int(files * gauge.percentage / 100)),
        total_files=files,
        eta_seconds=gauge.eta_s,
    )


def status_of(deployment: Deployment, replicas: Sequence[Replica]) -> DeploymentStatus:
    loaded = _serving(replicas)
    if deployment.unsatisfiable_ticks:
        return DeploymentStatus.UNSATISFIABLE
    if loaded and loaded >= deployment.min_replicas:
        return DeploymentStatus.READY
    if any(each.state in STARTING for each in replicas):
        return DeploymentStatus.LOADING
    is_idle = deployment.min_replicas == 0 and not deployment.spread_all
    return DeploymentStatus.IDLE if is_idle else DeploymentStatus.WAITING


def _fields(deployment: Deployment, replicas: Sequence[Replica]) -> dict[str, object]:
    spec = deployment.spec
    return {
        **{name: getattr(deployment, name) for name in DeploymentView.model_fields if hasattr(deployment, name)},
        **{name: getattr(spec, name) for name in ("backend", "memory", "ready_path", "ready_seconds")},
        "status": status_of(deployment, replicas),
        "files": [FileShape.model_validate(file, from_attributes=True) for file in spec.files],
        "arguments": list(spec.arguments),
        "environment": [name for name, _ in spec.environment],
        "route_policy": deployment.policy,
        "loaded": _serving(replicas),
        "starting": sum(each.state in STARTING for each in replicas),
        "ending": sum(each.state in ENDING for each in replicas),
        "in_flight": sum(each.in_flight for each in replicas),
    }


def _serving(replicas: Sequence[Replica]) -> int:
    return sum(each.state is ReplicaState.LOADED and each.is_reachable for each in replicas)


def _actions(name: str, explanation: Explanation) -> list[str]:
    """What the scheduler would do now about this model, as sentences."""
    plan = explanation.plan
    return [
        *(f"Place a replica on {each.choice.node_name}." for each in plan.place if each.model == name),
        *(f"Evict idle models to free {each.missing} bytes." for each in plan.evict if each.model == name),
        *(f"Drain {each.replica.key}: {each.why}." for each in plan.drain if each.replica.model == name),
        *(f"Stop the load of {each.key}: it is no longer wanted." for each in plan.stop if each.model == name),
        *(f"Unload {each.key}." for each in plan.unload if each.model == name),
        *(each.why for each in plan.unsatisfied if each.model == name),
    ]
