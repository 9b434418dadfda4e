"""The inventory: a copy of the backend list of each node, and when it was taken."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from pydantic_core import to_json
from sqlalchemy import ColumnElement, Select, exists, false, func, or_, select, text, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from nodesmith.contracts.nats.messages import Installed
from nodesmith.domain.eligibility import Obstacle
from nodesmith.domain.identity import family_of
from nodesmith.domain.inventory import DifferingNode, FleetBackend, FleetBuild
from nodesmith.domain.node import Node, NodeStatus
from nodesmith.domain.selector import EVERYTHING, Selector
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.entities import node_of
from nodesmith.store.nodes.eligibility import hindered_by
from nodesmith.store.nodes.labels import selector_condition
from nodesmith.store.nodes.nodes import select_nodes, status_expression
from nodesmith.store.tables.core import NodeRow, OperationRow
from nodesmith.store.tables.inventory import InstalledRow, InventoryScanRow
from nodesmith.store.text import storable

LONGEST_AGE = timedelta(hours=1)
"""a person may have changed the disk by hand"""
MAX_DIFFERING = 1000

_ANSWERING = (NodeStatus.HEALTHY, NodeStatus.UNHEALTHY, NodeStatus.DRAINING)
_COPIED = (
    *("name", "version", "digest", "uri", "gallery_url", "is_system", "is_meta"),
    *("installed_at", "previous_version", "previous_digest"),
)

_BEGIN_SCAN = text("""
    INSERT INTO inventory_scans (node_id, asked_at, boot_id)
    SELECT id, :asked_at, :boot_id FROM nodes WHERE id = :node_id FOR KEY SHARE
    ON CONFLICT (node_id) DO UPDATE SET asked_at = excluded.asked_at, boot_id = excluded.boot_id
    WHERE inventory_scans.asked_at < excluded.asked_at OR inventory_scans.asked_at > :now
    RETURNING node_id
""")
"""Locks the copy of the node. A reply to an older request changes nothing, nor does one of a removed node.
An `asked_at` in the future means that the clock was set back since: any reply replaces it."""

_REPLACE = text(f"""
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
        """Every node that has that backend: id, name, and the installed build."""
        wanted = select(NodeRow.name, InstalledRow).join(NodeRow, NodeRow.id == InstalledRow.node_id)
        ours = wanted.where(InstalledRow.family == family).order_by(NodeRow.name)
        async with self._database.session() as session:
            return [(row.node_id, name, _installed(row)) for name, row in await session.execute(ours)]

    async def uncertain(self, node_ids: Sequence[str]) -> set[str]:
        """Those of these nodes whose copy is missing or may be stale."""
        wanted = select(NodeRow.id).outerjoin(InventoryScanRow, InventoryScanRow.node_id == NodeRow.id)
        wanted = wanted.where(NodeRow.id.in_(node_ids), _may_be_stale(self._clock()))
        async with self._database.session() as session:
            return set(await session.scalars(wanted))

    async def certain(self, family: str, node_ids: Sequence[str]) -> dict[str, str]:
        """Node -> digest of that backend, for nodes with a current copy; one statement, so from one snapshot."""
        row, scan = InstalledRow, InventoryScanRow
        wanted = select(row.node_id, row.digest).join(NodeRow, NodeRow.id == row.node_id)
        wanted = wanted.outerjoin(scan, scan.node_id == NodeRow.id)
        is_current = func.coalesce(_may_be_stale(self._clock()), false()).is_(False)
        ours = wanted.where(row.family == family, row.node_id.in_(node_ids), is_current)
        async with self._database.reading() as session:
            return dict(list(await session.execute(ours)))

    async def replace(self, node_id: str, backends: Sequence[Installed], *, asked_at: datetime, boot_id: str) -> bool:
        """Replace the whole list of a node; False when a newer one is stored already."""
        rows = {row["family"]: row for row in (_row(node_id, each, asked_at) for each in backends)}
        scan = {"node_id": node_id, "asked_at": asked_at, "boot_id": boot_id, "now": self._clock()}
        async with self._database.session() as session:
            if (await session.execute(_BEGIN_SCAN, scan)).first() is None:
                return False
            await session.execute(_REPLACE, {"node_id": node_id, "rows": to_json(list(rows.values())).decode()})
        return True

    async def mark_stale(self, node_id: str) -> None:
        """Mark the copy as stale: the node changed its disk, and no operation records that."""
        doubted = update(InventoryScanRow).where(InventoryScanRow.node_id == node_id)
        async with self._database.session() as session:
            await session.execute(doubted.values(doubted_at=self._clock()))

    async def stale(self, *, limit: int, skip: Sequence[str] = ()) -> list[Node]:
        """Connected nodes whose copy may be stale; the oldest copies first."""
        now = self._clock()
        scan = InventoryScanRow
        wanted = select_nodes(now).outerjoin(scan, scan.node_id == NodeRow.id)
        wanted = wanted.where(
            ~hindered_by(Obstacle.NOT_FOR_BACKENDS),
            NodeRow.id.not_in(skip),
            status_expression(now).in_([str(status) for status in _ANSWERING]),
            _may_be_stale(now),
        )
        async with self._database.session() as session:
            found = await session.execute(wanted.order_by(scan.asked_at.nulls_first()).limit(limit))
            return [node_of(*row) for row in found]

    async def spread(self, *, family: str = "", selector: Selector = EVERYTHING) -> list[FleetBackend]:
        """Each backend with its installed builds, and the nodes that differ from the majority."""
        chosen = [InstalledRow.family == family] if family else []
        if selector.requirements:
            chosen.append(selector_condition(selector))
        async with self._database.snapshot() as session:
            builds: defaultdict[tuple[str, str], list[FleetBuild]] = defaultdict(list)
            names: dict[str, str] = {}
            for found, name, version, digest, count in await session.execute(_builds(chosen)):
                builds[found, names.setdefault(found, name)].append(FleetBuild(version, digest, count))
            differing: defaultdict[str, list[DifferingNode]] = defaultdict(list)
            for found, node in await session.execute(_differing(chosen, builds)):
                differing[found].append(DifferingNode(**node))
        return [
            FleetBackend(family=found, name=name, builds=each, differing=differing[found])
            for (found, name), each in builds.items()
        ]


async def _of_node(session: AsyncSession, node_id: str) -> list[Installed]:
    wanted = select(InstalledRow).where(InstalledRow.node_id == node_id).order_by(InstalledRow.family)
    return [_installed(row) for row in await session.scalars(wanted)]


def _may_be_stale(now: datetime) -> ColumnElement[bool]:
    """Whether a copy may be stale; derived from stored facts, so that no refresh can be lost."""
    scan, operation = InventoryScanRow, OperationRow
    ended_since = exists().where(operation.node_id == NodeRow.id, operation.ended_at > scan.asked_at)
    return or_(
        scan.asked_at.is_(None),
        scan.boot_id != NodeRow.boot_id,
        scan.asked_at < now - LONGEST_AGE,
        scan.asked_at > now,  # the clock was set back: operations that end now would seem older than this copy
        scan.doubted_at >= scan.asked_at,
        NodeRow.unreachable_since > scan.asked_at,
        ended_since.correlate(NodeRow, scan),
    )


def _builds(chosen: Sequence[ColumnElement[bool]]) -> Select[str, str, str, str, int]:
    row = InstalledRow
    wanted = select(row.family, func.min(row.name), row.version, row.digest, func.count())
    wanted = wanted.join(NodeRow, NodeRow.id == row.node_id).where(*chosen)
    newest = func.max(row.installed_at).desc().nulls_last()
    return wanted.group_by(row.family, row.version, row.digest).order_by(row.family, func.count().desc(), newest)


def _differing(
    chosen: Sequence[ColumnElement[bool]], builds: Mapping[tuple[str, str], Sequence[FleetBuild]]
) -> Select[str, dict[str, str]]:
    """The nodes without the most common build of a family, which comes first in its list."""
    row = InstalledRow
    mixed = {family: each[0] for (family, _), each in builds.items() if len(each) > 1}
    usual = [(family, build.version, build.digest) for family, build in mixed.items()]
    node = func.jsonb_build_object(
        *("node_id", NodeRow.id, "node_name", NodeRow.name, "version", row.version, "digest", row.digest)
    )
    wanted = select(row.family, node).join(NodeRow, NodeRow.id == row.node_id).where(*chosen)
    return (
        wanted.where(row.family.in_(list(mixed)))
        .where(tuple_(row.family, row.version, row.digest).not_in(usual))
        .order_by(row.family, NodeRow.name)
        .limit(MAX_DIFFERING)
    )


def _row(node_id: str, installed: Installed, seen_at: datetime) -> dict[str, object]:
    copied = {column: storable(getattr(installed, column)) for column in _COPIED}
    family = storable(installed.family) or family_of(storable(installed.name))
    return {"node_id": node_id, "family": family, "seen_at": seen_at, **copied}


def _installed(row: InstalledRow) -> Installed:
    return Installed(family=row.family, **{column: getattr(row, column) for column in _COPIED})
