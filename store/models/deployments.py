"""Deployments in the database: what to load, the rule for it, and the scheduler's clocks and counters."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from nodesmith.domain.deployment import READY_PATH, Deployment, LoadSpec, ModelFile, RoutePolicy, Rule, StoredRule
from nodesmith.domain.model_errors import RevisionConflict
from nodesmith.domain.tick import Unsatisfied
from nodesmith.store.database import Database
from nodesmith.store.models.statements import LOCK
from nodesmith.store.tables.models import LoadFailureRow, ModelRow, ModelRuleRow

_RULE = tuple(Rule.__dataclass_fields__)
_CALM: Mapping[str, Any] = {"unsatisfiable_until": None, "unsatisfiable_ticks": 0, "unsatisfiable_why": ""}


class Deployments:
    """The tables `models` and `model_rules`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self) -> Sequence[Deployment]:
        async with self._database.reading() as session:
            return [deployment_of(found) for found in await session.execute(select_deployments())]

    async def find(self, name: str) -> Deployment | None:
        async with self._database.reading() as session:
            return await _find(session, name)

    async def deploy(self, spec: LoadSpec, rule: Rule, *, expected: int | None = None) -> Deployment:
        """Store what to load and the rule. A changed specification gets the next revision; an equal one keeps its own.

        `expected`: the revision that the caller has seen (0: none); raises `RevisionConflict` if it is another.
        """
        async with self._database.session() as session:
            await session.execute(LOCK)
            known = await session.get(ModelRow, spec.model)
            found = known.revision if known else 0
            if expected is not None and expected != found:
                raise RevisionConflict(model=spec.model, expected=expected, found=found)
            if known is None or known.load != load_of(spec):
                await _write_spec(session, spec, found + 1)
            await _write_rule(session, spec.model, rule)
            await session.execute(update(ModelRow).where(ModelRow.name == spec.model).values(**_CALM))
            return await _find_one(session, spec.model)

    async def remove(self, name: str) -> bool:
        """Remove model and rule; the scheduler unloads its replicas."""
        async with self._database.session() as session:
            await session.execute(LOCK)
            await session.execute(delete(ModelRuleRow).where(ModelRuleRow.model_name == name))
            gone = delete(ModelRow).where(ModelRow.name == name).returning(ModelRow.name)
            return await session.scalar(gone) is not None

    # rules -----------------------------------------------------------------------------------------------------

    async def rules(self) -> Sequence[StoredRule]:
        """All rules by model (R64), also those whose model is not deployed."""
        wanted = _select_rules().order_by(ModelRuleRow.model_name)
        async with self._database.reading() as session:
            return [_rule_of(*found) for found in await session.execute(wanted)]

    async def rule(self, name: str) -> StoredRule | None:
        async with self._database.reading() as session:
            found = (await session.execute(_select_rules().where(ModelRuleRow.model_name == name))).first()
        return _rule_of(*found) if found else None

    async def set_rule(self, name: str, rule: Rule) -> StoredRule:
        """Write a rule; a changed rule ends the rest of an unsatisfiable model (H36)."""
        async with self._database.session() as session:
            await session.execute(LOCK)
            await _write_rule(session, name, rule)
            await session.execute(update(ModelRow).where(ModelRow.name == name).values(**_CALM))
            return _rule_of(*(await session.execute(_select_rules().where(ModelRuleRow.model_name == name))).one())

    async def remove_rule(self, name: str) -> bool:
        """Remove a rule; its model is then loaded on demand."""
        async with self._database.session() as session:
            await session.execute(LOCK)
            gone = delete(ModelRuleRow).where(ModelRuleRow.model_name == name).returning(ModelRuleRow.model_name)
            return await session.scalar(gone) is not None

    # what routers and the scheduler note -----------------------------------------------------------------------

    async def want(self, name: str) -> bool:
        """Note that a router waits for a replica; written once a second at most. False: there is no such model."""
        is_old = func.coalesce(ModelRow.wanted_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, 1), True)
        async with self._database.session() as session:
            noted = update(ModelRow).where(ModelRow.name == name, is_old).values(wanted_at=func.now())
            if await session.scalar(noted.returning(ModelRow.name)) is not None:
                return True
            return await session.scalar(select(ModelRow.name).where(ModelRow.name == name)) is not None

    async def note_busy(self, names: Sequence[str], now: datetime) -> None:
        await self._note(names, last_busy_at=now)

    async def note_scaled(self, names: Sequence[str], now: datetime) -> None:
        await self._note(names, last_scaled_at=now)

    async def note_satisfied(self, names: Sequence[str]) -> None:
        await self._note(names, **_CALM)

    async def note_unsatisfied(self, found: Sequence[Unsatisfied]) -> None:
        async with self._database.session() as session:
            for each in found:
                known = update(ModelRow).where(ModelRow.name == each.model)
                await session.execute(
                    known.values(
                        unsatisfiable_ticks=each.ticks, unsatisfiable_until=each.until, unsatisfiable_why=each.why
                    )
                )

    async def _note(self, names: Sequence[str], **values: Any) -> None:
        if names:
            async with self._database.session() as session:
                await session.execute(update(ModelRow).where(ModelRow.name.in_(names)).values(**values))


_MODEL = (
    *(ModelRow.name, ModelRow.revision, ModelRow.load, ModelRow.created_at, ModelRow.updated_at),
    *(ModelRow.unsatisfiable_until, ModelRow.unsatisfiable_ticks, ModelRow.unsatisfiable_why),
    *(ModelRow.wanted_at, ModelRow.last_busy_at, ModelRow.last_scaled_at, ModelRuleRow.updated_at),
)
_DEPLOYMENTS = (
    select(*_MODEL, *(getattr(ModelRuleRow, key) for key in _RULE))
    .outerjoin(ModelRuleRow, ModelRuleRow.model_name == ModelRow.name)
    .order_by(ModelRow.name)
)
_POLICY = _RULE.index("policy")


def select_deployments() -> Select[Any]:
    """Models and their rules as plain columns: the scheduler reads all of them at every tick."""
    return _DEPLOYMENTS


def deployment_of(row: Sequence[Any]) -> Deployment:
    """A row of `select_deployments`. A model without a rule is loaded on demand, on any node."""
    name, revision, load, created_at, updated_at, until, ticks, why, wanted_at, busy_at, scaled_at, ruled_at, *rule = (
        row
    )
    if ruled_at is not None:
        rule[_POLICY] = RoutePolicy(rule[_POLICY])
    return Deployment(
        name=name,
        spec=spec_of(name, revision, load),
        **(dict(zip(_RULE, rule, strict=True)) if ruled_at is not None else {}),
        unsatisfiable_until=until,
        unsatisfiable_ticks=ticks,
        unsatisfiable_why=why,
        wanted_at=wanted_at,
        last_busy_at=busy_at,
        last_scaled_at=scaled_at,
        created_at=created_at,
        updated_at=updated_at if ruled_at is None else max(updated_at, ruled_at),
    )


def load_of(spec: LoadSpec) -> dict[str, Any]:
    """The specification as it is stored, without name and revision."""
    stored = asdict(spec)
    del stored["model"], stored["revision"]
    stored["files"] = [dict(file) for file in stored["files"]]
    stored["arguments"] = list(spec.arguments)
    stored["environment"] = dict(spec.environment)
    return stored


def spec_of(name: str, revision: int, load: Mapping[str, Any]) -> LoadSpec:
    return LoadSpec(
        model=name,
        revision=revision,
        backend=load["backend"],
        files=tuple(ModelFile(**file) for file in load.get("files", ())),
        arguments=tuple(load.get("arguments", ())),
        environment=tuple(sorted(load.get("environment", {}).items())),
        memory=load.get("memory", 0),
        ready_path=load.get("ready_path", READY_PATH),
        ready_seconds=load.get("ready_seconds", 0),
    )


async def _write_spec(session: AsyncSession, spec: LoadSpec, revision: int) -> None:
    """Write the next revision; failures of the last one no longer count."""
    first = insert(ModelRow).values(name=spec.model, revision=revision, load=load_of(spec))
    newer = {"revision": revision, "load": first.excluded.load, "updated_at": func.now()}
    await session.execute(first.on_conflict_do_update(index_elements=[ModelRow.name], set_=newer))
    await session.execute(delete(LoadFailureRow).where(LoadFailureRow.model_name == spec.model))


async def _write_rule(session: AsyncSession, name: str, rule: Rule) -> None:
    values = {key: getattr(rule, key) for key in _RULE} | {"policy": rule.policy.value}
    first = insert(ModelRuleRow).values(model_name=name, **values)
    newer = {key: first.excluded[key] for key in _RULE} | {"updated_at": func.now()}
    await session.execute(first.on_conflict_do_update(index_elements=[ModelRuleRow.model_name], set_=newer))


async def _find(session: AsyncSession, name: str) -> Deployment | None:
    wanted = select_deployments().where(ModelRow.name == name)
    found = (await session.execute(wanted)).first()
    return deployment_of(found) if found else None


async def _find_one(session: AsyncSession, name: str) -> Deployment:
    wanted = select_deployments().where(ModelRow.name == name)
    return deployment_of((await session.execute(wanted)).one())


def _select_rules() -> Select[ModelRuleRow, datetime | None, int | None]:
    columns = (ModelRuleRow, ModelRow.unsatisfiable_until, ModelRow.unsatisfiable_ticks)
    joined = select(*columns).outerjoin(ModelRow, ModelRow.name == ModelRuleRow.model_name)
    return joined.execution_options(populate_existing=True)


def _rule_of(row: ModelRuleRow, until: datetime | None, ticks: int | None) -> StoredRule:
    return StoredRule(
        model=row.model_name,
        **_rule_values(row),
        unsatisfiable_until=until,
        unsatisfiable_ticks=ticks or 0,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _rule_values(row: ModelRuleRow) -> dict[str, Any]:
    return {key: getattr(row, key) for key in _RULE} | {"policy": RoutePolicy(row.policy)}
