"""Eligibility: Python and SQL give the same answer, and every rule has its place in the order."""

import uuid
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select

from nodesmith.domain.eligibility import RULES, Obstacle, obstacle
from nodesmith.store.database import Database
from nodesmith.store.nodes.eligibility import hindered_by
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.tables.core import NodeRow
from tests.store.clock import NOON

MOMENTS = st.none() | st.integers(-100, 100).map(lambda seconds: NOON + timedelta(seconds=seconds))
FACTS = st.fixed_dictionaries(
    {
        "node_type": st.sampled_from(["backend", "agent", "from-a-newer-version"]),
        "approved_at": MOMENTS,
        "drained_at": MOMENTS,
        "leaving_at": MOMENTS,
        "left_at": MOMENTS,
        "last_heartbeat": MOMENTS,
        "unreachable_since": MOMENTS,
    }
)
FIXED = {"protocol": 2, "max_replicas_per_model": 1, "resources": {}, "created_at": NOON, "updated_at": NOON}
FIXED |= dict.fromkeys(("address", "http_address", "vram_budget", "machine_id", "boot_id", "agent_version"), "")


def test_every_obstacle_has_one_rule() -> None:
    assert list(RULES) == list(Obstacle)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(facts=FACTS)
async def test_python_and_sql_agree(database: Database, nodes: Nodes, facts: dict[str, Any]) -> None:
    node_id = str(uuid.uuid4())
    async with database.session() as session:
        await session.execute(insert(NodeRow).values(id=node_id, name=node_id, **FIXED, **facts))
        asked = select(*(hindered_by(why).label(why.value) for why in Obstacle)).where(NodeRow.id == node_id)
        in_sql = [Obstacle(why) for why, is_so in (await session.execute(asked)).mappings().one().items() if is_so]
    node = await nodes.find(node_id)
    assert node is not None
    assert [why for why, rule in RULES.items() if rule.hinders(node)] == in_sql
    assert obstacle(node) == (in_sql[0] if in_sql else None)
    insisting = [why for why in in_sql if why is not Obstacle.DRAINED]
    assert obstacle(node, on_drained=True) == (insisting[0] if insisting else None)
