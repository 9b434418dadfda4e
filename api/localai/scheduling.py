"""LocalAI's scheduling rules of models, and the status of a load."""

import json
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path
from pydantic import Field

from nodesmith.api.auth import admin, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.v1.deployments import model_load_status
from nodesmith.contracts.http.deployments import Policy
from nodesmith.contracts.http.replicas import LoadStatus
from nodesmith.contracts.http.shared import Shape, example
from nodesmith.contracts.names import PlainName
from nodesmith.domain.deployment import LONGEST_NAME, RoutePolicy, Rule, StoredRule, validate_name, validate_rule
from nodesmith.domain.model_errors import UnknownModel
from nodesmith.domain.selector import EVERYTHING, Operator, Requirement, Selector
from nodesmith.domain.selector import parse as parse_selector

router = APIRouter(prefix="/api", tags=["LocalAI"], dependencies=[Depends(viewer)])

Model = Annotated[str, Path(min_length=1, max_length=LONGEST_NAME, description="Name of the model.")]

_ADMIN = [Depends(admin)]


class SchedulingBody(Shape):
    """A rule in LocalAI's format. The four routing fields keep their value if they are left out."""

    model_config = example(model_name="llama", node_selector={"zone": "a"}, min_replicas=1, max_replicas=4)

    model_name: PlainName = Field(max_length=LONGEST_NAME)
    """name of the model, which need not be deployed yet"""
    node_selector: dict[str, str] | None = None
    """labels that a node must have"""
    min_replicas: int = 0
    """replicas that always run"""
    max_replicas: int = 0
    """0: as many as fit"""
    spread_all: bool = False
    """one replica on each matching node"""
    route_policy: Policy | None = None
    """"", round_robin or prefix_cache"""
    balance_abs_threshold: int | None = None
    """at least 0"""
    balance_rel_threshold: float | None = None
    """0, or at least 1"""
    min_prefix_match: float | None = None
    """0 to 1"""

    def rule(self, known: StoredRule | None) -> Rule:
        kept = known or Rule()
        return Rule(
            selector=str(_selector(self.node_selector or {})),
            min_replicas=self.min_replicas,
            max_replicas=self.max_replicas,
            spread_all=self.spread_all,
            policy=kept.policy if self.route_policy is None else self.route_policy,
            balance_abs_threshold=int(_or(self.balance_abs_threshold, kept.balance_abs_threshold)),
            balance_rel_threshold=_or(self.balance_rel_threshold, kept.balance_rel_threshold),
            min_prefix_match=_or(self.min_prefix_match, kept.min_prefix_match),
        )


class SchedulingView(Shape):
    """A rule in LocalAI's format."""

    id: str
    """the name of the model"""
    model_name: str
    """name of the model"""
    node_selector: str | None = None
    """JSON text, as LocalAI stores it; a selector that is not made of equal labels is given as it is written"""
    min_replicas: int
    """replicas that always run"""
    max_replicas: int
    """0: as many as fit"""
    spread_all: bool | None = None
    """one replica on each matching node"""
    route_policy: RoutePolicy | None = None
    """how calls are spread"""
    balance_abs_threshold: int | None = None
    """0: default"""
    balance_rel_threshold: float | None = None
    """0: default"""
    min_prefix_match: float | None = None
    """0: default"""
    unsatisfiable_until: datetime | None = None
    """no placement is tried before this time, unless something changes"""
    unsatisfiable_ticks: int
    """ticks of the scheduler without a place"""
    created_at: datetime
    """when the rule was made"""
    updated_at: datetime
    """when the rule was last changed"""


@router.get("/nodes/scheduling", response_model_exclude_none=True, dependencies=_ADMIN, responses=responses())
async def list_scheduling(deps: Deps) -> list[SchedulingView]:
    """All rules, by model."""
    return [_view(rule) for rule in await deps.deployments.table.rules()]


@router.post("/nodes/scheduling", response_model_exclude_none=True, dependencies=_ADMIN, responses=responses(400))
async def set_scheduling(body: SchedulingBody, deps: Deps) -> SchedulingView:
    """Set the rule of a model, which need not be deployed yet."""
    validate_name(body.model_name)
    table = deps.deployments.table
    rule = body.rule(await table.rule(body.model_name))
    validate_rule(rule)
    return _view(await table.set_rule(body.model_name, rule))


@router.get(
    "/nodes/scheduling/{model:path}",
    response_model_exclude_none=True,
    dependencies=_ADMIN,
    responses=responses(400, 404),
)
async def get_scheduling(model: Model, deps: Deps) -> SchedulingView:
    """The rule of one model."""
    found = await deps.deployments.table.rule(model)
    if found is None:
        raise UnknownModel("no scheduling config for model", model=model)
    return _view(found)


@router.delete("/nodes/scheduling/{model:path}", status_code=204, dependencies=_ADMIN, responses=responses(400))
async def delete_scheduling(model: Model, deps: Deps) -> None:
    """Remove the rule of a model; it is then loaded on demand. A missing rule is not an error."""
    await deps.deployments.table.remove_rule(model)


@router.get("/models/{model:path}/load-status", response_model_exclude_none=True, responses=responses(400, 404))
async def get_model_load_status(model: Model, deps: Deps) -> LoadStatus:
    """How far the load of a model is; 404 if it is not being loaded."""
    return await model_load_status(deps, model)


def _view(rule: StoredRule) -> SchedulingView:
    return SchedulingView(
        id=rule.model,
        model_name=rule.model,
        node_selector=_selector_text(rule.selector),
        min_replicas=rule.min_replicas,
        max_replicas=rule.max_replicas,
        spread_all=rule.spread_all or None,
        route_policy=rule.policy if rule.policy is not RoutePolicy.INHERIT else None,
        balance_abs_threshold=rule.balance_abs_threshold or None,
        balance_rel_threshold=rule.balance_rel_threshold or None,
        min_prefix_match=rule.min_prefix_match or None,
        unsatisfiable_until=rule.unsatisfiable_until,
        unsatisfiable_ticks=rule.unsatisfiable_ticks,
        created_at=rule.created_at,
        updated_at=rule.updated_at,
    )


def _selector(labels: dict[str, str]) -> Selector:
    return Selector(tuple(Requirement(key, Operator.IN, (value,)) for key, value in sorted(labels.items())))


def _selector_text(text: str) -> str | None:
    selector = parse_selector(text)
    if selector == EVERYTHING:
        return None
    pairs = {each.key: each.values[0] for each in selector.requirements if len(each.values) == 1}
    is_plain = all(each.operator is Operator.IN and each.key in pairs for each in selector.requirements)
    return json.dumps(pairs, sort_keys=True) if is_plain else text


def _or(value: float | None, kept: float) -> float:
    return kept if value is None else value
