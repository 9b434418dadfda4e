"""Labels of the nodes: the value of each source, the effective value, and selectors in SQL."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import ColumnElement, Numeric, and_, delete, exists, func, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.selectable import ScalarSelect

from nodesmith.domain.errors import InvalidRequest, UnknownNode
from nodesmith.domain.labels import AUTOMATIC, LONGEST_VALUE, MOST_LABELS, VENDOR, VRAM, automatic_labels
from nodesmith.domain.selector import Operator, Requirement, Selector
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.tables.core import NodeRow
from nodesmith.store.tables.inventory import NodeLabelRow
from nodesmith.store.text import storable

_SOURCES = ("automatic", "by_admin", "by_node")


def selector_condition(selector: Selector) -> ColumnElement[bool]:
    """`Selector.matches` in SQL, for a statement that selects from `nodes`."""
    return and_(True, *(_requirement(each) for each in selector.requirements))  # noqa: FBT003 - SQL's TRUE


def labels_of_node() -> ScalarSelect[dict[str, str]]:
    """The effective labels of each node that a statement selects."""
    found = select(func.jsonb_object_agg(NodeLabelRow.key, NodeLabelRow.value, type_=JSONB))
    return found.where(NodeLabelRow.node_id == NodeRow.id).correlate(NodeRow).scalar_subquery()


async def write_reported(session: AsyncSession, node: NodeRow, reported: Mapping[str, str]) -> None:
    """Write the labels that the node reported and the automatic ones; the admin's labels stay."""
    automatic = automatic_of(node)
    own = {key: value for key, value in reported.items() if key not in AUTOMATIC}
    await _write_sources(session, node.id, {"by_node": storable(own), "automatic": automatic})


async def write_automatic(session: AsyncSession, node: NodeRow) -> None:
    await _write_sources(session, node.id, {"automatic": automatic_of(node)})


def automatic_of(node: NodeRow) -> dict[str, str]:
    return automatic_labels(
        name=node.name,
        gpu_vendor=node.resources.get("gpu_vendor"),
        total_vram=node.resources.get("total_vram"),
        slots=node.max_replicas_override or node.max_replicas_per_model,
    )


class Labels:
    """The labels of one node, as an admin sees and changes them."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def of_node(self, node_id: str) -> dict[str, str]:
        async with self._database.session() as session:
            return {row.key: row.value for row in await _rows(session, node_id)}

    async def update_automatic(self) -> int:
        """Rewrite automatic labels where a heartbeat changed the facts, such as a GPU that disappeared or returned."""
        async with self._database.session() as session:
            changed = list(await session.scalars(select(NodeRow).where(_differs_from_facts()).with_for_update()))
            for node in changed:
                await write_automatic(session, node)
        return len(changed)

    async def replace(self, node_id: str, labels: Mapping[str, str]) -> dict[str, str]:
        """Replace all labels of the admin; those of the node and automatic ones stay."""
        async with self._database.session() as session:
            rows = await _locked(session, node_id, self._clock())
            return await _write_admins(session, node_id, rows, labels)

    async def merge(self, node_id: str, labels: Mapping[str, str]) -> dict[str, str]:
        async with self._database.session() as session:
            rows = await _locked(session, node_id, self._clock())
            said = {key: row.by_admin for key, row in rows.items() if row.by_admin is not None}
            return await _write_admins(session, node_id, rows, {**said, **labels})

    async def remove(self, node_id: str, key: str) -> dict[str, str]:
        """Remove a label of the admin. A label that the node reports can only be overridden."""
        async with self._database.session() as session:
            rows = await _locked(session, node_id, self._clock())
            row = rows.get(key)
            if row is not None and row.by_admin is None:
                raise InvalidRequest(_cannot_set(key), field=key)
            said = {each: row.by_admin for each, row in rows.items() if row.by_admin is not None and each != key}
            return await _write_admins(session, node_id, rows, said)


async def _locked(session: AsyncSession, node_id: str, now: datetime) -> dict[str, NodeLabelRow]:
    """Lock the labels of a node, so that changes are serialised."""
    known = update(NodeRow).where(NodeRow.id == node_id).values(updated_at=now).returning(NodeRow.id)
    if await session.scalar(known) is None:
        raise UnknownNode(node=node_id)
    return {row.key: row for row in await _rows(session, node_id)}


async def _rows(session: AsyncSession, node_id: str) -> list[NodeLabelRow]:
    found = select(NodeLabelRow).where(NodeLabelRow.node_id == node_id).order_by(NodeLabelRow.key)
    return list(await session.scalars(found.execution_options(populate_existing=True)))


async def _write_admins(
    session: AsyncSession, node_id: str, rows: Mapping[str, NodeLabelRow], wanted: Mapping[str, str]
) -> dict[str, str]:
    """Store the admin's labels, except those equal to the node's own value: clients send back what they read."""
    for key, value in wanted.items():
        if key in AUTOMATIC and (key not in rows or rows[key].automatic != value):
            raise InvalidRequest(_cannot_set(key), field=key)
    own = {key: value for key, value in wanted.items() if not _is_reported(rows.get(key), value)}
    await _write_sources(session, node_id, {"by_admin": own})
    labels = {row.key: row.value for row in await _rows(session, node_id)}
    if len(labels) > MOST_LABELS:
        raise InvalidRequest(f"labels: a node has {MOST_LABELS} labels at most.", field="labels")
    return labels


def _differs_from_facts() -> ColumnElement[bool]:
    label = NodeLabelRow
    said = select(label.automatic).where(label.node_id == NodeRow.id, label.key == VENDOR).scalar_subquery()
    vendor = func.left(NodeRow.resources["gpu_vendor"].astext, LONGEST_VALUE)
    has_vram = func.coalesce(NodeRow.resources["total_vram"].astext.cast(Numeric), 0) > 0
    says_vram = exists().where(label.node_id == NodeRow.id, label.key == VRAM, label.automatic.is_not(None))
    return (func.coalesce(vendor, "") != func.coalesce(said, "")) | (has_vram != says_vram)


def _is_reported(row: NodeLabelRow | None, value: str) -> bool:
    return row is not None and value in (row.automatic, row.by_node)


def _cannot_set(key: str) -> str:
    if key in AUTOMATIC:
        return f"{key}: this is an automatic label; only Nodesmith sets it."
    return f"{key}: the node reports this label itself. Change it in the agent's settings, or set another value here."


async def _write_sources(session: AsyncSession, node_id: str, said: Mapping[str, Mapping[str, str]]) -> None:
    """Replace the labels of these sources; a label without any source is deleted."""
    keys = sorted({key for labels in said.values() for key in labels})
    row = NodeLabelRow
    gone = (row.node_id == node_id) & row.key.not_in(keys)
    silent = [getattr(row, source).is_(None) for source in _SOURCES if source not in said]
    await session.execute(delete(row).where(gone, *silent))
    taken_back = or_(*(getattr(row, source).is_not(None) for source in said))
    await session.execute(update(row).where(gone, taken_back).values(dict.fromkeys(said)))
    if not keys:
        return
    first = insert(row).values(
        [{"node_id": node_id, "key": key, **{source: said[source].get(key) for source in said}} for key in keys]
    )
    news = {source: first.excluded[source] for source in said}
    stored = tuple_(*(getattr(row, source) for source in said))
    changed = stored.is_distinct_from(tuple_(*news.values()))
    await session.execute(first.on_conflict_do_update(index_elements=[row.node_id, row.key], set_=news, where=changed))


def _requirement(requirement: Requirement) -> ColumnElement[bool]:
    label = NodeLabelRow
    found = exists().where(label.node_id == NodeRow.id, label.key == requirement.key).correlate(NodeRow)
    match requirement.operator:
        case Operator.EXISTS:
            return found
        case Operator.ABSENT:
            return ~found
        case Operator.IN:
            return found.where(label.value.in_(requirement.values))
        case Operator.NOT_IN:
            return ~found.where(label.value.in_(requirement.values))
