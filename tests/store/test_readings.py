"""Invalid values of one node affect only that node and no other node's write."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodesmith.api.views.nodes import node_view
from nodesmith.api.views.operations import operation_view
from nodesmith.cli.output.render import local_time
from nodesmith.contracts.nats.messages import Installed, Outcome, Progress
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.operation import State
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from tests.store.clock import NOON
from tests.store.fleet import healthy
from tests.store.transitions import a_request, transition

NUMBERS = st.one_of(
    st.integers(min_value=-(2**80), max_value=2**80),
    st.floats(),
    st.sampled_from([2**63 - 1, 2**63, 2**60, 2**60 + 1, "1e400", "9" * 40, math.nan, math.inf, None, True]),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PROGRESS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("bytes_done", "bytes_total", "percentage", "rate", "eta_s", "decision", "seq"), NUMBERS),
        "phase": TEXTS,
        "file_name": TEXTS,
    },
)
RESOURCES = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(("total_vram", "available_ram"), NUMBERS), "gpu_vendor": TEXTS, "capability": TEXTS}
)
OUTCOME = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("bytes_fetched", "bytes_reused", "decision", "retry_after_s"), NUMBERS),
        "error": TEXTS,
        "before": st.fixed_dictionaries({}, optional={"name": TEXTS, "version": TEXTS, "digest": TEXTS}),
    },
)
EXAMPLES = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def heard(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@EXAMPLES
@given(fields=PROGRESS)
async def test_odd_gauge_of_one_node_spoils_no_other_nodes_gauge(
    operations: OperationTable, fields: dict[str, Any]
) -> None:
    odd, good = a_request(), a_request()
    for request in (odd, good):
        await operations.record(transition(request, State.RUNNING))
    ticks = [
        Progress.decode(heard(op_id=odd.op_id, node_id="n1", **fields)),
        Progress(op_id=good.op_id, node_id="n1", bytes_done=7, rate=5.0),
    ]
    await operations.write_gauges(ticks)
    rows = [await operations.find(request.op_id) for request in (odd, good)]
    assert rows[1] is not None
    assert (rows[1].progress.bytes_done, rows[1].progress.rate) == (7, 5.0)
    assert rows[0] is not None
    assert json.loads(operation_view(rows[0]).progress.model_dump_json())["rate"] is not None


@EXAMPLES
@given(resources=RESOURCES, boot=TEXTS)
async def test_odd_heartbeat_of_one_node_spoils_no_other_nodes_heartbeat(
    nodes: Nodes, resources: dict[str, Any], boot: str
) -> None:
    odd, good = await healthy(nodes), await healthy(nodes)
    beats = [Heartbeat(node_id=good.id, resources={"total_ram": 7})]
    try:
        beats.append(Heartbeat.decode(heard(node_id=odd.id, boot_id=boot, resources=resources)))
    except ValueError:
        assert "\0" in boot
    await nodes.heartbeats(beats, NOON)
    known = await nodes.find_many([odd.id, good.id])
    assert known[good.id].total_ram == 7
    assert node_view(known[odd.id]).model_dump_json()


BEYOND_PYTHON = ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00")
"""PostgreSQL stores them, and reading them back fails"""


@pytest.mark.parametrize("at", [*BEYOND_PYTHON, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "x", 2**80])
async def test_odd_clock_of_one_node_spoils_no_other_nodes_heartbeat(nodes: Nodes, at: object) -> None:
    odd, good = await healthy(nodes), await healthy(nodes)
    beat = Heartbeat.decode(heard(node_id=odd.id, at=at, resources={"total_ram": 5}))
    known = await nodes.heartbeats([beat, Heartbeat(node_id=good.id, resources={"total_ram": 7})], NOON)
    assert {node.node_id for node in known} == {odd.id, good.id}
    assert (await nodes.find_many([good.id]))[good.id].total_ram == 7


@EXAMPLES
@given(fields=OUTCOME)
async def test_every_outcome_that_can_be_read_can_be_written(
    operations: OperationTable, fields: dict[str, Any]
) -> None:
    request = a_request()
    outcome = Outcome.decode(heard(op_id=request.op_id, result="succeeded", **fields))
    ended = transition(request, State.SUCCEEDED, detail=outcome.error, outcome=outcome, ended_at=NOON)
    assert await operations.record(ended)
    found = await operations.find(request.op_id)
    assert found is not None
    assert found.state is State.SUCCEEDED


async def test_open_operations_of_one_node_never_spoil_the_question_about_all(operations: OperationTable) -> None:
    ended = a_request()
    await operations.record(transition(ended, State.CANCELLED))
    odd = Heartbeat.decode(heard(node_id="n1", open_ops=["\0", *(f"op-{number}" for number in range(70_000))]))
    found = await operations.ended_among([*odd.open_ops, ended.op_id])
    assert [row.op_id for row in found] == [ended.op_id]


@pytest.mark.parametrize(
    "installed_at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-01-01T00:00:00", *BEYOND_PYTHON]
)
async def test_list_with_odd_times_is_taken_over(nodes: Nodes, database: Database, installed_at: str) -> None:
    node, inventory = await healthy(nodes), InventoryTable(database)
    entry = Installed.model_validate({"name": "echo", "version": "\0", "installed_at": installed_at})
    assert await inventory.replace(node.id, [entry], asked_at=NOON, boot_id="b1")
    listed = await inventory.of_node(node.id)
    assert [each.name for each in listed] == ["echo"]
    assert local_time(listed[0].installed_at) is not None
