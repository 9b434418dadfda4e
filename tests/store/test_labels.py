"""Labels: their sources, overrides, and selectors in SQL."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, text

from nodesmith.contracts.nats.presence import Heartbeat, Resources
from nodesmith.domain.errors import InvalidRequest, UnknownNode
from nodesmith.domain.selector import Operator, Requirement, Selector, parse
from nodesmith.store.database import Database
from nodesmith.store.nodes.labels import Labels, selector_condition
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.nodes.overrides import Overrides
from nodesmith.store.tables.core import NodeRow
from nodesmith.store.tables.inventory import NodeLabelRow
from tests.store.clock import NOON
from tests.store.fleet import a_node, fill, registered

GIB = 2**30
GPU: dict[str, Any] = {"gpu_vendor": "nvidia", "total_vram": 24 * GIB, "available_vram": 20 * GIB}


@pytest.fixture
def labels(database: Database) -> Labels:
    return Labels(database)


@pytest.fixture
def overrides(database: Database) -> Overrides:
    return Overrides(database)


async def test_a_replace_loses_neither_automatic_labels_nor_the_nodes_own(nodes: Nodes, labels: Labels) -> None:
    """H35, R54, R77: PUT replaces the admin's labels, and nothing else."""
    node = await registered(nodes, labels={"zone": "a", "node.replica-slots": "9"}, **GPU)
    await labels.replace(node.id, {"tier": "gold"})
    automatic = {"gpu.vendor": "nvidia", "gpu.vram": "24GB", "node.name": node.name, "node.replica-slots": "1"}
    assert await labels.replace(node.id, {"team": "x"}) == {**automatic, "zone": "a", "team": "x"}
    assert await labels.of_node(node.id) == {**automatic, "zone": "a", "team": "x"}
    assert await labels.replace(node.id, {}) == {**automatic, "zone": "a"}


async def test_a_client_may_send_back_what_it_read(nodes: Nodes, labels: Labels) -> None:
    """H35: an unchanged label keeps its source."""
    node = await registered(nodes, labels={"zone": "a"}, **GPU)
    read = await labels.of_node(node.id)
    assert await labels.replace(node.id, {**read, "team": "x"}) == {**read, "team": "x"}
    again = a_node(name=node.name, labels={"zone": "b"})
    view = await nodes.upsert(again, now=NOON, credential_hash=None, approve=False)
    assert (view.labels["zone"], view.labels["team"], "gpu.vram" in view.labels) == ("b", "x", False)


async def test_admin_label_overrides_the_nodes_until_removed(nodes: Nodes, labels: Labels) -> None:
    """R53, R55, R90: an override survives registration; once removed, the node's own value applies at once."""
    node = await registered(nodes, labels={"zone": "a"})
    assert (await labels.merge(node.id, {"zone": "z"}))["zone"] == "z"
    again = a_node(name=node.name, labels={"zone": "b"})
    view = await nodes.upsert(again, now=NOON, credential_hash=None, approve=False)
    assert view.labels["zone"] == "z"
    assert (await labels.remove(node.id, "zone"))["zone"] == "b"


async def test_label_is_deleted_when_the_node_no_longer_reports_it(nodes: Nodes, labels: Labels) -> None:
    node = await registered(nodes, labels={"zone": "a", "rack": "1"})
    await labels.merge(node.id, {"rack": "2"})
    view = await nodes.upsert(a_node(name=node.name), now=NOON, credential_hash=None, approve=False)
    assert ("zone" in view.labels, view.labels["rack"]) == (False, "2")
    assert "rack" not in await labels.remove(node.id, "rack")


async def test_only_nodesmith_writes_automatic_labels(nodes: Nodes, labels: Labels) -> None:
    """R77, and the field is named."""
    node = await registered(nodes)
    for key in ("node.name", "gpu.vendor"):
        with pytest.raises(InvalidRequest) as refused:
            await labels.merge(node.id, {"zone": "a", key: "mine"})
        assert refused.value.facts["field"] == key
    with pytest.raises(InvalidRequest):
        await labels.remove(node.id, "node.name")
    assert "zone" not in await labels.of_node(node.id)


async def test_removing_what_is_not_there_is_no_error_but_the_nodes_own_label_is(nodes: Nodes, labels: Labels) -> None:
    """R55."""
    node = await registered(nodes, labels={"zone": "a"})
    before = await labels.of_node(node.id)
    assert await labels.remove(node.id, "nothing") == before
    with pytest.raises(InvalidRequest, match="zone: the node reports this label itself"):
        await labels.remove(node.id, "zone")
    with pytest.raises(UnknownNode):
        await labels.merge("nobody", {"a": "b"})


async def test_merges_at_once_lose_nothing(nodes: Nodes, labels: Labels) -> None:
    """R53: upserts of different keys do not overwrite each other."""
    node = await registered(nodes)
    await asyncio.gather(*(labels.merge(node.id, {f"k{number}": "v"}) for number in range(20)))
    assert {f"k{number}" for number in range(20)} <= set(await labels.of_node(node.id))


async def test_labels_go_with_their_node(nodes: Nodes, labels: Labels, database: Database) -> None:
    """R5, H10: by foreign key."""
    node = await registered(nodes, labels={"zone": "a"})
    async with database.session() as session:
        await session.delete(await session.get_one(NodeRow, node.id))
    async with database.session() as session:
        left = select(func.count()).select_from(NodeLabelRow).where(NodeLabelRow.node_id == node.id)
        assert await session.scalar(left) == 0


# hardware and overrides ----------------------------------------------------------------------------------------


async def test_a_node_that_lost_its_gpu_shows_it(nodes: Nodes) -> None:
    """H37: a registration is a complete report; zero and missing values overwrite."""
    node = await registered(nodes, **GPU)
    assert node.labels["gpu.vram"] == "24GB"
    bare = a_node(name=node.name, gpu_vendor="", total_vram=0, available_vram=0)
    view = await nodes.upsert(bare, now=NOON, credential_hash=None, approve=False)
    assert (view.gpu_vendor, view.total_vram, view.available_vram) == ("", 0, 0)
    assert not {"gpu.vendor", "gpu.vram"} & set(view.labels)


async def test_a_gpu_that_is_lost_or_found_between_registrations_shows_in_the_labels(
    nodes: Nodes, labels: Labels
) -> None:
    """H37, R23, R77: heartbeats change the facts, the automatic labels follow."""
    node = await registered(nodes, **GPU)

    async def after(**resources: Any) -> set[str]:
        await nodes.heartbeats([Heartbeat(node_id=node.id, resources=Resources(**resources))], NOON)
        await labels.update_automatic()
        assert await labels.update_automatic() == 0
        return {"gpu.vendor", "gpu.vram"} & set(await labels.of_node(node.id))

    assert await after(total_vram=0) == {"gpu.vendor"}
    assert await after(gpu_vendor="") == set()
    assert await after(gpu_vendor="amd", total_vram=48 * GIB) == {"gpu.vendor", "gpu.vram"}
    assert (await labels.of_node(node.id))["gpu.vendor"] == "amd"


async def test_replica_override_survives_registration_until_removed(nodes: Nodes, overrides: Overrides) -> None:
    """R73, R74, R90, R14d: the label follows."""
    node = await registered(nodes, max_replicas_per_model=2)

    async def seen() -> tuple[int, bool, str]:
        view = await nodes.upsert(
            a_node(name=node.name, max_replicas_per_model=3), now=NOON, credential_hash=None, approve=False
        )
        manual = view.max_replicas_per_model_manually_set
        return view.max_replicas_per_model, manual, view.labels["node.replica-slots"]

    await overrides.max_replicas(node.id, 8)
    assert await seen() == (8, True, "8")
    await overrides.max_replicas(node.id, None)
    view = await nodes.find(node.id)
    assert view is not None
    assert (view.max_replicas_per_model, view.labels["node.replica-slots"]) == (3, "3")
    assert await seen() == (3, False, "3")
    with pytest.raises(UnknownNode):
        await overrides.max_replicas("nobody", 1)


async def test_budget_limits_available_vram_and_not_total_vram(nodes: Nodes, overrides: Overrides) -> None:
    """R90: an admin's budget survives registration, also an empty one; once removed, the node's applies."""
    node = await registered(nodes, vram_budget="50%", **GPU)
    assert (node.vram_budget_bytes, node.available_vram, node.total_vram) == (12 * GIB, 8 * GIB, 24 * GIB)

    async def seen() -> tuple[str, int | None, int | None, bool]:
        again = a_node(name=node.name, vram_budget="50%", **GPU)
        view = await nodes.upsert(again, now=NOON, credential_hash=None, approve=False)
        return view.vram_budget, view.vram_budget_bytes, view.available_vram, view.vram_budget_manually_set

    await overrides.vram_budget(node.id, "6GiB")
    assert await seen() == ("6GiB", 6 * GIB, 2 * GIB, True)
    await overrides.vram_budget(node.id, "")
    assert await seen() == ("", None, 20 * GIB, True)
    await overrides.vram_budget(node.id, None)
    assert await seen() == ("50%", 12 * GIB, 8 * GIB, False)


# the selector in SQL is the selector of the domain -------------------------------------------------------------

KEYS, VALUES = st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "x", "y", "X", "%", "x'y"])
SETS = st.sets(VALUES, min_size=1, max_size=3).map(lambda found: tuple(sorted(found)))
REQUIREMENTS = st.one_of(
    st.builds(Requirement, KEYS, st.sampled_from([Operator.EXISTS, Operator.ABSENT])),
    st.builds(Requirement, KEYS, st.sampled_from([Operator.IN, Operator.NOT_IN]), SETS),
)
SELECTORS = st.lists(REQUIREMENTS, max_size=4).map(lambda found: Selector(tuple(found)))
FLEET = [
    {key: value for key, value in (("a", a), ("b", b), ("c", c)) if value is not None}
    for a in (None, "", "x", "y")
    for b in (None, "x", "X", "%")
    for c in (None, "x'y")
]


@pytest.fixture(scope="module")
async def labelled(database: Database) -> list[str]:
    return await fill(database, FLEET, prefix="sql")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(selector=SELECTORS)
async def test_selector_in_sql_is_the_selector_of_the_domain(
    database: Database, labelled: list[str], selector: Selector
) -> None:
    """R57, R58: one meaning, in Python and over the table."""
    wanted = select(NodeRow.id).where(selector_condition(selector), NodeRow.id.in_(labelled))
    async with database.session() as session:
        in_sql = set(await session.scalars(wanted))
    assert in_sql == {node_id for node_id, has in zip(labelled, FLEET, strict=True) if selector.matches(has)}


@pytest.mark.parametrize("selector", ["zone=z7", "zone in (z7,z8)", "zone=z7,rack!=r1", "only"])
async def test_selectors_use_the_index(database: Database, selector: str) -> None:
    """A selective one over 5,000 nodes reads its own labels, not all of them."""
    async with database.session() as session:
        crowd = "FROM generate_series(1, 5000) AS number"
        await session.execute(
            text(f"""
            INSERT INTO nodes (id, name, node_type, protocol, address, http_address, max_replicas_per_model,
                vram_budget, machine_id, boot_id, agent_version, resources, created_at, updated_at)
            SELECT 'x' || number, 'x' || number, 'backend', 2, '', '', 1, '', '', '', '', '{{}}', now(), now() {crowd}
        """)
        )
        labels = "INSERT INTO node_labels (node_id, key, by_node) SELECT 'x' || number, "
        await session.execute(text(f"{labels} 'zone', 'z' || number % 200 {crowd}"))
        await session.execute(text(f"{labels} 'rack', 'r' || number % 50 {crowd}"))
        await session.execute(text(f"{labels} 'only', 'me' {crowd} WHERE number < 5"))
        await session.execute(text("ANALYZE nodes, node_labels"))
        wanted = select(NodeRow.id).where(selector_condition(parse(selector)))
        compiled = wanted.compile(dialect=session.get_bind().dialect, compile_kwargs={"literal_binds": True})
        plan = "\n".join(await session.scalars(text(f"EXPLAIN {compiled}".replace(":", r"\:"))))
        await session.rollback()
    assert "ix_node_labels_key_value_node_id" in plan
    assert "Seq Scan on node_labels" not in plan
