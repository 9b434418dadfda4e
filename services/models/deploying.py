"""Deployments: create, change, scale, remove, explain. Refuses what can never work before anything is stored."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from nodesmith.contracts.http.deployments import DeploymentDiff, DeploymentRequest, FieldChange
from nodesmith.domain.deployment import Deployment, LoadSpec, Rule, validate_rule, validate_spec
from nodesmith.domain.errors import UnknownBackend
from nodesmith.domain.model_errors import NoNodeFits, UnknownModel
from nodesmith.domain.node import NodeStatus
from nodesmith.domain.placement import Placement, PlacementNode, place, size_words
from nodesmith.domain.replica import Replica
from nodesmith.domain.scaling import plan_tick
from nodesmith.domain.selector import parse as parse_selector
from nodesmith.domain.tick import Fleet, Plan
from nodesmith.services.models.ports import DeploymentTable, Replicas, Snapshots
from nodesmith.services.operations.intents import Intents
from nodesmith.services.ports import Inventory

_SHOWN = ("backend", "files", "arguments", "environment", "memory", "ready_path", "ready_seconds")
_RULE = tuple(Rule.__dataclass_fields__)


@dataclass(frozen=True)
class Explanation:
    """Where the next replica of a model would go, and what the scheduler would do now."""

    placement: Placement
    plan: Plan


@dataclass(frozen=True)
class Move:
    """A replica of a node that is to be drained, and the node that would take it."""

    replica: Replica
    placement: Placement


@dataclass(frozen=True)
class ModelService:
    deployments: DeploymentTable
    replicas: Replicas
    snapshots: Snapshots
    intents: Intents
    inventory: Inventory
    clock: Callable[[], datetime]

    async def find(self, name: str) -> Deployment:
        found = await self.deployments.find(name)
        if found is None:
            raise UnknownModel(f"There is no deployment {name}.", model=name)
        return found

    async def deploy(self, name: str, request: DeploymentRequest) -> Deployment:
        """Store the deployment; the scheduler does the rest."""
        spec, rule = await self._checked(name, request)
        return await self.deployments.deploy(spec, rule, expected=request.expected_revision)

    async def diff(self, name: str, request: DeploymentRequest) -> DeploymentDiff:
        """What a deployment would change; raises what it would raise."""
        spec, rule = await self._checked(name, request)
        return _difference(await self.deployments.find(name), spec, rule)

    async def scale(self, name: str, low: int, high: int) -> Deployment:
        """Change how many replicas run; revision and everything else stay."""
        known = await self.find(name)
        values = {key: getattr(known, key) for key in _RULE}
        rule = replace(Rule(**values), min_replicas=low, max_replicas=high, spread_all=False)
        validate_rule(rule)
        return await self.deployments.deploy(known.spec, rule, expected=known.revision)

    async def remove(self, name: str) -> None:
        """Remove the deployment; the scheduler stops its loads and unloads its replicas when their calls have ended."""
        if not await self.deployments.remove(name):
            raise UnknownModel(f"There is no deployment {name}.", model=name)

    async def explain(self, name: str) -> Explanation:
        """Where the next replica would go, from one snapshot; changes nothing."""
        fleet = await self.snapshots.read(capacity_changed=True)
        model = next((each for each in fleet.deployments if each.name == name), None)
        if model is None:
            raise UnknownModel(f"There is no deployment {name}.", model=name)
        rests = fleet.rests.get(name, {})
        placement = place(model.spec, parse_selector(model.selector), fleet.nodes, now=fleet.now, resting=rests)
        return Explanation(placement, plan_tick(fleet))

    async def drain_preview(self, node_id: str) -> list[Move]:
        """Where the replicas of a node would go if it were drained."""
        fleet = await self.snapshots.read(capacity_changed=True)
        models = {each.name: each for each in fleet.deployments}
        node = next((each for each in fleet.nodes if each.id == node_id), None)
        if node is None:
            return []
        node.status = NodeStatus.DRAINING
        return [_move(fleet, models[each.model], each) for each in node.replicas if each.model in models]

    async def _checked(self, name: str, request: DeploymentRequest) -> tuple[LoadSpec, Rule]:
        spec, rule = request.spec(name), request.rule()
        validate_spec(spec)
        validate_rule(rule)
        for file in spec.files:
            self.intents.check_uri(file.uri)
        await self._refuse_unknown_backend(spec.backend)
        if not request.force:
            _refuse_what_never_fits(spec, rule, await self.snapshots.read())
        return spec, rule

    async def _refuse_unknown_backend(self, backend: str) -> None:
        catalogue = self.intents.catalogue
        if catalogue.concrete_alternative(backend) or catalogue.resolve(backend) is not None:
            return
        if not await self.inventory.having(catalogue.family(backend)):
            raise UnknownBackend(f"No gallery and no node has the backend {backend}.", backend=backend, field="backend")


def _move(fleet: Fleet, model: Deployment, replica: Replica) -> Move:
    """Where the successor goes; it is counted for the next one."""
    rests = fleet.rests.get(model.name, {})
    placement = place(model.spec, parse_selector(model.selector), fleet.nodes, now=fleet.now, resting=rests)
    if placement.choice is not None:
        target = next(node for node in fleet.nodes if node.id == placement.choice.node_id)
        target.add(replace(replica, node_id=target.id, index=placement.choice.index, loaded_at=None))
    return Move(replica, placement)


def _refuse_what_never_fits(spec: LoadSpec, rule: Rule, fleet: Fleet) -> None:
    """Refuse a selector that matches no node, and more memory than any matching node has."""
    selector = parse_selector(rule.selector)
    matching = [node for node in fleet.nodes if selector.matches(node.labels) and node.runs_backends]
    if not matching:
        which = f"matches the selector {rule.selector}" if rule.selector else "that runs backends is registered"
        raise NoNodeFits(f"No node {which}.", field="selector")
    largest = max(matching, key=lambda node: node.budget or 0)
    if spec.memory > (largest.budget or 0):
        raise NoNodeFits(
            f"A replica needs {size_words(spec.memory)}; {_largest_words(largest)}.", field="memory", node=largest.name
        )


def _largest_words(node: PlacementNode) -> str:
    if node.budget is None:
        return "no matching node reports its memory"
    return f"the largest matching node, {node.name}, has {size_words(node.budget)} for models"


def _difference(known: Deployment | None, spec: LoadSpec, rule: Rule) -> DeploymentDiff:
    changes = []
    for field in _SHOWN:
        before = getattr(known.spec, field) if known else None
        if before != getattr(spec, field):
            changes.append(
                FieldChange(field=field, before=_shown(field, before), after=_shown(field, getattr(spec, field)))
            )
    is_changed = bool(changes)
    for field in _RULE:
        before = getattr(known, field) if known else None
        if before != getattr(rule, field):
            changes.append(FieldChange(field=field, before=before, after=getattr(rule, field)))
    revision = known.revision if known else 0
    return DeploymentDiff(name=spec.model, is_new=known is None, revision=revision + is_changed, changes=changes)


def _shown(field: str, value: object) -> object:
    """The value for people: variables without their values, files by name and digest."""
    match field, value:
        case "environment", tuple():
            return [name for name, _ in value]
        case "files", tuple():
            return [f"{file.name} {file.sha256[:12]}" for file in value]
        case _, tuple():
            return list(value)
    return value
