"""What each node has installed: a copy of the nodes' own lists, and when it was taken."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic_core import to_json
from sqlalchemy import ColumnElement, Select, exists, func, or_, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from contracts.inventory import BackendBuild, BackendSpread, DifferingNode
from contracts.messages import Installed
from contracts.node_http import NodeView
from domain.identity import family_of
from domain.node import NodeStatus, NodeType
from domain.selector import EVERYTHING, Selector
from store.clock import Clock, utc_now
from store.database import Database
from store.labels import selector_condition
from store.models import NodeRow, OperationRow
from store.models_inventory import InstalledRow, InventoryScanRow
from store.nodes import node_views, status_expression
from store.text import storable
from store.views import node_view

LONGEST_AGE = timedelta(hours=1)
"""somebody may have changed a disk by hand"""
MOST_DIFFERING = 1000

_ANSWERING = (NodeStatus.HEALTHY, NodeStatus.UNHEALTHY, NodeStatus.DRAINING)
_COPIED = (
    *("name", "version", "digest", "uri", "gallery_url", "is_system", "is_meta"),
    *("installed_at", "previous_version", "previous_digest"),
)

_BEGIN_SCAN = text("""
    INSERT INTO inventory_scans (node_id, asked_at, boot_id)
    SELECT id, :asked_at, :boot_id FROM nodes WHERE id = :node_id FOR KEY SHARE
    ON CONFLICT (node_id) DO UPDATE SET asked_at = excluded.asked_at, boot_id = excluded.boot_id
    WHERE inventory_scans.asked_at < excluded.asked_at
    RETURNING node_id
""")
"""Lock the node's copy; an answer to an older question changes nothing, nor does one of a node that is gone."""

_TAKE_OVER = text(f"""
    WITH listed AS (SELECT * FROM jsonb_populate_recordset(NULL::installed_backends, CAST(:rows AS jsonb))),
    gone AS (
        DELETE FROM installed_backends
        WHERE node_id = :node_id AND family NOT IN (SELECT family FROM listed))
    INSERT INTO installed_backends (node_id, family, seen_at, {", ".join(_COPIED)})
    SELECT node_id, family, seen_at, {", ".join(_COPIED)} FROM listed
    ON CONFLICT (node_id, family)
    DO UPDATE SET {", ".join(f"{column} = excluded.{column}" for column in (*_COPIED, "seen_at"))}
""")  # noqa: S608 - the columns are ours


class InventoryTable:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def of_node(self, node_id: str) -> list[Installed]:
        async with self._database.reading() as session:
            return await _of_node(session, node_id)

    async def copy(self, node_id: str) -> tuple[datetime | None, list[Installed]]:
        """When the node's list was last taken (None: never), and that list."""
        asked_at = select(InventoryScanRow.asked_at).where(InventoryScanRow.node_id == node_id)
        async with self._database.snapshot() as session:
            return await session.scalar(asked_at), await _of_node(session, node_id)

    async def having(self, family: str) -> list[tuple[str, str, Installed]]:
        """Every node that has that backend: id, name, and what it has."""
        wanted = select(NodeRow.name, InstalledRow).join(NodeRow, NodeRow.id == InstalledRow.node_id)
        ours = wanted.where(InstalledRow.family == family).order_by(NodeRow.name)
        async with self._database.session() as session:
            return [(row.node_id, name, _installed(row)) for name, row in await session.execute(ours)]

    async def uncertain(self, node_ids: Sequence[str]) -> set[str]:
        """Of these, the nodes whose copy was never taken or may be out of date."""
        wanted = select(NodeRow.id).outerjoin(InventoryScanRow, InventoryScanRow.node_id == NodeRow.id)
        wanted = wanted.where(NodeRow.id.in_(node_ids), _may_be_wrong(self._clock()))
        async with self._database.session() as session:
            return set(await session.scalars(wanted))

    async def replace(self, node_id: str, backends: Sequence[Installed], *, asked_at: datetime, boot_id: str) -> bool:
        """Take over a node's whole list: what it no longer names is gone. False when a newer one is here already."""
        rows = {row["family"]: row for row in (_row(node_id, each, asked_at) for each in backends)}
        scan = {"node_id": node_id, "asked_at": asked_at, "boot_id": boot_id}
        async with self._database.session() as session:
            if (await session.execute(_BEGIN_SCAN, scan)).first() is None:
                return False
            await session.execute(_TAKE_OVER, {"node_id": node_id, "rows": to_json(list(rows.values())).decode()})
        return True

    async def stale(self, *, limit: int, skip: Sequence[str] = ()) -> list[NodeView]:
        """Nodes that can be asked and whose copy may be wrong; the oldest first."""
        now = self._clock()
        scan = InventoryScanRow
        wanted = node_views(now).outerjoin(scan, scan.node_id == NodeRow.id)
        wanted = wanted.where(
            NodeRow.node_type == str(NodeType.BACKEND),
            NodeRow.id.not_in(skip),
            status_expression(now).in_([str(status) for status in _ANSWERING]),
            _may_be_wrong(now),
        )
        async with self._database.session() as session:
            found = await session.execute(wanted.order_by(scan.asked_at.nulls_first()).limit(limit))
            return [node_view(*row) for row in found]

    async def spread(self, *, family: str = "", selector: Selector = EVERYTHING) -> list[BackendSpread]:
        """Each backend with the builds of it that are out there, and the nodes that differ from most."""
        chosen = [InstalledRow.family == family] if family else []
        if selector.requirements:
            chosen.append(selector_condition(selector))
        async with self._database.snapshot() as session:
            builds = (await session.execute(_builds(chosen))).all()
            spreads: dict[str, BackendSpread] = {}
            for found, name, version, digest, count in builds:  # the commonest build of each family comes first
                spread = spreads.setdefault(found, BackendSpread(family=found, name=name, nodes=0))
                spread.builds.append(BackendBuild(version=version, digest=digest, nodes=count))
                spread.nodes += count
            for differing_family, differing in await session.execute(_differing(chosen, spreads)):
                spreads[differing_family].differing.append(DifferingNode.model_validate(differing))
        return list(spreads.values())


async def _of_node(session: AsyncSession, node_id: str) -> list[Installed]:
    wanted = select(InstalledRow).where(InstalledRow.node_id == node_id).order_by(InstalledRow.family)
    return [_installed(row) for row in await session.scalars(wanted)]


def _may_be_wrong(now: datetime) -> ColumnElement[bool]:
    """Derived from facts, so that no refresh can be forgotten for ever."""
    scan, operation = InventoryScanRow, OperationRow
    ended_since = exists().where(operation.node_id == NodeRow.id, operation.ended_at > scan.asked_at)
    return or_(
        scan.asked_at.is_(None),
        scan.boot_id != NodeRow.boot_id,
        scan.asked_at < now - LONGEST_AGE,
        NodeRow.unreachable_since > scan.asked_at,
        ended_since.correlate(NodeRow, scan),
    )


def _builds(chosen: Sequence[ColumnElement[bool]]) -> Select[str, str, str, str, int]:
    row = InstalledRow
    wanted = select(row.family, func.min(row.name), row.version, row.digest, func.count())
    wanted = wanted.join(NodeRow, NodeRow.id == row.node_id).where(*chosen)
    newest = func.max(row.installed_at).desc().nulls_last()
    return wanted.group_by(row.family, row.version, row.digest).order_by(row.family, func.count().desc(), newest)


def _differing(chosen: Sequence[ColumnElement[bool]], spreads: dict[str, BackendSpread]) -> Select[str, dict[str, str]]:
    row = InstalledRow
    mixed = [each for each in spreads.values() if len(each.builds) > 1]
    usual = [(each.family, each.builds[0].version, each.builds[0].digest) for each in mixed]
    node = func.jsonb_build_object(
        *("node_id", NodeRow.id, "node_name", NodeRow.name, "version", row.version, "digest", row.digest)
    )
    wanted = select(row.family, node).join(NodeRow, NodeRow.id == row.node_id).where(*chosen)
    return (
        wanted.where(row.family.in_([each.family for each in mixed]))
        .where(tuple_(row.family, row.version, row.digest).not_in(usual))
        .order_by(row.family, NodeRow.name)
        .limit(MOST_DIFFERING)
    )


def _row(node_id: str, installed: Installed, seen_at: datetime) -> dict[str, object]:
    copied = {column: storable(getattr(installed, column)) for column in _COPIED}
    family = storable(installed.family) or family_of(storable(installed.name))
    return {"node_id": node_id, "family": family, "seen_at": seen_at, **copied}


def _installed(row: InstalledRow) -> Installed:
    return Installed(family=row.family, **{column: getattr(row, column) for column in _COPIED})
