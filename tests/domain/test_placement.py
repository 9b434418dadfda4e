"""Placement: the order of the tests, the order of preference, and a reason for every other node."""

from datetime import timedelta
from typing import Any

import pytest

from nodesmith.domain.deployment import LoadSpec, ModelFile
from nodesmith.domain.node import NodeStatus, Protocol
from nodesmith.domain.placement import DISK_IF_UNKNOWN, PlacementNode, Refusal, WhyNot, disk_need, place
from nodesmith.domain.replica import ReplicaState
from nodesmith.domain.selector import EVERYTHING, parse
from tests.domain.fleets import GIB, NOW, a_model, a_node, a_replica

A_FILE = ModelFile(uri="https://models.test/a.gguf", sha256="a" * 64, name="a.gguf", size=10 * GIB)
SPEC = LoadSpec(model="llama", revision=1, backend="echo-lm", memory=2 * GIB, files=(A_FILE,))


def why(node: PlacementNode, *, spec: LoadSpec = SPEC, selector: str = "", **facts: Any) -> WhyNot | None:
    answer = place(spec, parse(selector), [node], now=NOW, **facts)
    assert (answer.choice is None) == bool(answer.refusals)
    return answer.refusals[0].why if answer.refusals else None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"runs_backends": False}, WhyNot.NO_BACKENDS),
        ({"protocol": Protocol.LOCALAI}, WhyNot.LOCALAI_WORKER),
        ({"status": NodeStatus.PENDING}, WhyNot.NOT_APPROVED),
        ({"status": NodeStatus.UNHEALTHY}, WhyNot.NOT_HEALTHY),
        ({"status": NodeStatus.OFFLINE}, WhyNot.NOT_HEALTHY),
        ({"status": NodeStatus.DRAINING}, WhyNot.NOT_HEALTHY),
        ({"disk_total": 100 * GIB, "disk_available": 10 * GIB}, WhyNot.DISK),
        ({"disk_total": 100 * GIB, "disk_available": 11 * GIB}, None),
        ({"disk_total": 100 * GIB, "disk_available": 0, "digests": frozenset({A_FILE.sha256})}, None),
        ({"disk_total": None, "disk_available": None}, None),
        ({"slots": 0}, WhyNot.NO_SLOT),
        ({"available": GIB}, WhyNot.MEMORY),
        ({"budget": GIB}, WhyNot.MEMORY),
        ({"budget": None, "available": None}, WhyNot.MEMORY),
        ({"budget": None, "available": 2 * GIB}, None),
    ],
)
def test_a_node_that_cannot_take_the_replica_is_refused(facts: dict[str, Any], expected: WhyNot | None) -> None:
    """R92, R68, R19, 3.9: only healthy backend nodes with disk, a free slot and memory."""
    assert why(a_node(**facts)) is expected


def test_selector_is_tested_first() -> None:
    assert why(a_node(status=NodeStatus.OFFLINE, slots=0), selector="zone=a") is WhyNot.NO_MATCH
    assert why(a_node(labels={"zone": "a"}), selector="zone=a") is None


def test_a_node_rests_after_a_failed_load() -> None:
    node = a_node()
    assert why(node, resting={node.id: NOW + timedelta(seconds=1)}) is WhyNot.RESTING
    assert why(node, resting={node.id: NOW}) is None


def test_unknown_memory_need_is_not_tested() -> None:
    assert why(a_node(budget=None, available=None), spec=LoadSpec(model="m", revision=1, backend="b")) is None


def test_disk_need_has_a_margin() -> None:
    """3.9: payload and the larger of 5 % and 1 GiB; 2 GiB if the size is unknown."""
    assert disk_need(SPEC) == 11 * GIB
    assert disk_need(a_model(spec={"files": (A_FILE, A_FILE, A_FILE)}).spec) == 31 * GIB + GIB // 2
    unknown = ModelFile(uri="u", sha256="b" * 64, name="b")
    assert disk_need(a_model(spec={"files": (A_FILE, unknown)}).spec) == DISK_IF_UNKNOWN


def test_a_row_in_any_state_occupies_its_slot_and_its_memory() -> None:
    """R42, R94: also a load in progress and a replica that is being unloaded."""
    for state in set(ReplicaState) - {ReplicaState.UNKNOWN}:
        node, model = a_node(gib=3, slots=2), a_model(gib=2)
        a_replica(node, model, state, index=1)
        assert node.free_index("llama") == 0
        assert why(node) is WhyNot.MEMORY


def test_memory_of_a_replica_counts_twice_until_a_reading_shows_it() -> None:
    node = a_node(gib=8, available=5 * GIB, slots=3)
    a_replica(node, a_model(gib=4), loaded_at=NOW)
    assert node.free == GIB, "5 GiB were free before 4 GiB were loaded"
    seen = a_node(gib=8, available=5 * GIB, slots=3)
    a_replica(seen, a_model(gib=4), loaded_at=NOW - timedelta(minutes=1))
    assert seen.free == 4 * GIB


def test_order_of_preference() -> None:
    """R44, R45, R59, R60, R61: without this model, with backend and files, idle, least loaded; the others are named."""
    other = a_model("other", gib=0)
    has_it, prepared, half, idle = (a_node(name, slots=2) for name in ("has-it", "prepared", "half", "idle"))
    loaded, busy = a_node("loaded"), a_node("busy")
    for node in (has_it, prepared):
        node.families, node.digests = frozenset({"echo-lm"}), frozenset({A_FILE.sha256})
    half.families = frozenset({"echo-lm"})
    a_replica(has_it, a_model(gib=0))
    for node in (prepared, half, loaded):
        a_replica(node, other)
    a_replica(busy, other, in_flight=3)
    nodes = [busy, loaded, idle, half, prepared, has_it]
    chosen = []
    while nodes:
        answer = place(SPEC, EVERYTHING, nodes, now=NOW)
        assert answer.choice is not None
        assert {each.why for each in answer.refusals} <= {WhyNot.NOT_PREFERRED}
        chosen.append(answer.choice.node_name)
        nodes = [node for node in nodes if node.name != answer.choice.node_name]
    assert chosen == ["prepared", "half", "idle", "loaded", "busy", "has-it"]


def test_every_refusal_is_a_sentence() -> None:
    for reason in WhyNot:
        assert Refusal("id", "n", reason, "detail").words.endswith(": detail")
