"""Scaling: the plan of one tick, as a function of a snapshot."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesmith.domain.node import NodeStatus
from nodesmith.domain.replica import ReplicaState
from nodesmith.domain.tick import NOTHING, PlannedEviction, rest_after
from tests.domain.fleets import GIB, LONG_AGO, NOW, a_model, a_node, a_replica, places, planned

MINUTES = timedelta(minutes=1)


def test_missing_replicas_are_placed_up_to_the_minimum() -> None:
    nodes, model = [a_node(f"n{number}") for number in range(4)], a_model(min_replicas=3, max_replicas=4)
    a_replica(nodes[0], model, ReplicaState.LOADING)
    assert places(planned(nodes, model)) == [("llama", "n1"), ("llama", "n2")]
    assert [each.upto for each in planned(nodes, model).place] == [2, 3]


def test_nothing_happens_between_minimum_and_maximum() -> None:
    nodes, model = [a_node(), a_node()], a_model(min_replicas=1, max_replicas=2)
    a_replica(nodes[0], model)
    plan = planned(nodes, model)
    assert not any((plan.place, plan.drain, plan.unload, plan.stop, plan.unsatisfied, plan.satisfied))


def test_placed_replica_without_a_run_is_started_again() -> None:
    node, model = a_node(), a_model()
    placing = a_replica(node, model, ReplicaState.PLACING)
    assert planned([node], model).start == [placing]


def test_one_more_when_all_are_busy() -> None:
    """3.2: one at a time, and none while another is on its way."""
    nodes, model = [a_node(f"n{number}") for number in range(4)], a_model(min_replicas=1, max_replicas=3)
    a_replica(nodes[0], model, in_flight=1)
    plan = planned(nodes, model)
    assert places(plan) == [("llama", "n1")]
    assert plan.busy == ["llama"]
    a_replica(nodes[1], model, ReplicaState.LOADING)
    assert not planned(nodes, model).place
    nodes[1].replicas.clear()
    a_replica(nodes[1], model)
    assert not planned(nodes, model).place, "one of them is idle"


def test_no_more_than_the_maximum() -> None:
    nodes, model = [a_node(), a_node()], a_model()
    a_replica(nodes[0], model, in_flight=9)
    assert not planned(nodes, model).place
    assert len(planned(nodes, a_model(max_replicas=0)).place) == 1, "0 is no limit"


def test_a_burst_evicts_nobody_and_is_not_unsatisfiable() -> None:
    """3.2: no cooldown in this case."""
    node, model, other = a_node(gib=1), a_model(max_replicas=0), a_model("other", min_replicas=0)
    full = a_node(gib=1)
    a_replica(node, model, in_flight=1)
    a_replica(full, other)
    plan = planned([node, full], model, other)
    assert not any((plan.place, plan.evict, plan.unsatisfied))


@pytest.mark.parametrize("fact", ["last_busy_at", "wanted_at"])
def test_one_less_after_five_minutes_without_need(fact: str) -> None:
    """3.2, R94: the highest index goes first, down to the minimum."""
    node = a_node(slots=3)
    long_ago: dict[str, Any] = {fact: NOW - 5 * MINUTES}
    idle = a_model(min_replicas=1, max_replicas=3, **long_ago)
    replicas = [a_replica(node, idle) for _ in range(3)]
    plan = planned([node], idle)
    assert [(each.replica, each.keep) for each in plan.drain] == [(replicas[2], 2)]
    recent: dict[str, Any] = {fact: NOW - 5 * MINUTES + timedelta(seconds=1)}
    needed = a_model(min_replicas=1, max_replicas=3, **recent)
    assert not planned([node], needed).drain


def test_steps_down_have_a_pause() -> None:
    node = a_node(slots=2)
    model = a_model(max_replicas=2, last_scaled_at=NOW - timedelta(seconds=29))
    for _ in range(2):
        a_replica(node, model)
    assert not planned([node], model).drain


def test_last_replica_goes_only_if_it_is_unused() -> None:
    node, model = a_node(), a_model(min_replicas=0)
    used = a_replica(node, model, last_used=NOW - MINUTES)
    assert not planned([node], model).drain
    node.replicas.remove(used)
    unused = a_replica(node, model)
    assert [each.replica for each in planned([node], model).drain] == [unused]


def test_busy_replicas_are_not_scaled_down() -> None:
    node, model = a_node(slots=2), a_model(max_replicas=2)
    idle, busy = a_replica(node, model), a_replica(node, model, in_flight=1)
    assert busy.index > idle.index
    assert [each.replica for each in planned([node], model).drain] == [idle]


def test_more_than_the_maximum_are_reduced_at_once() -> None:
    node, model = a_node(slots=4), a_model(min_replicas=1, max_replicas=2)
    first, second = a_replica(node, model), a_replica(node, model, in_flight=5)
    third = a_replica(node, model, loaded_at=NOW)
    starting = a_replica(node, model, ReplicaState.LOADING)
    plan = planned([node], model)
    assert plan.stop == [starting]
    assert [each.replica for each in plan.drain] == [third]
    assert {first, second}


def test_router_that_waits_gets_the_first_replica() -> None:
    node = a_node()
    assert places(planned([node], a_model(min_replicas=0, wanted_at=NOW))) == [("llama", node.name)]
    assert not planned([node], a_model(min_replicas=0, wanted_at=NOW - MINUTES)).place
    assert not planned([node], a_model(min_replicas=0)).place


def test_replicas_on_unhealthy_nodes_do_not_count() -> None:
    """H11, R67: they are replaced; a node that is unreachable since a moment is given ten seconds."""
    lost, spare, model = a_node("lost"), a_node("spare"), a_model()
    a_replica(lost, model)
    lost.status, lost.is_serving, lost.unreachable_since = NodeStatus.UNHEALTHY, False, NOW - timedelta(seconds=9)
    assert not planned([lost, spare], model).place
    lost.unreachable_since = NOW - timedelta(seconds=10)
    assert places(planned([lost, spare], model)) == [("llama", "spare")]
    lost.status, lost.unreachable_since = NodeStatus.OFFLINE, None
    assert places(planned([lost, spare], model)) == [("llama", "spare")]


def test_node_that_returns_gives_its_extra_replica_up() -> None:
    back, spare, model = a_node("back"), a_node("spare"), a_model()
    old = a_replica(back, model, last_used=LONG_AGO)
    a_replica(spare, model, last_used=NOW)
    assert [each.replica for each in planned([back, spare], model).drain] == [old]


def test_rows_of_a_node_that_left_are_forgotten() -> None:
    gone, model = a_node(status=NodeStatus.OFFLINE, is_serving=False, has_left=True), a_model(min_replicas=0)
    replica = a_replica(gone, model)
    assert planned([gone], model).forget == [replica]


def test_drain_moves_replicas_first() -> None:
    """Without dropping a call: the old one serves until the new one is loaded."""
    drained, spare, model = a_node("drained"), a_node("spare"), a_model()
    old = a_replica(drained, model, in_flight=4)
    drained.status = NodeStatus.DRAINING
    plan = planned([drained, spare], model)
    assert places(plan) == [("llama", "spare")]
    assert not plan.drain
    loading = a_replica(spare, model, ReplicaState.LOADING)
    assert not planned([drained, spare], model).drain
    spare.replicas.remove(loading)
    a_replica(spare, model)
    moved = planned([drained, spare], model)
    assert [(each.replica, each.keep) for each in moved.drain] == [(old, 1)]
    assert not moved.place


def test_drain_without_another_place_keeps_serving_and_says_why() -> None:
    drained, model = a_node("drained"), a_model()
    a_replica(drained, model)
    drained.status = NodeStatus.DRAINING
    plan = planned([drained], model)
    assert not plan.drain
    assert plan.unsatisfied[0].why == "0 of 1 replicas: drained: it is not healthy: it is draining."


def test_replica_moves_when_its_node_no_longer_matches() -> None:
    """R93."""
    wrong, right = a_node("wrong"), a_node("right", labels={"zone": "a"})
    model = a_model(selector="zone=a")
    a_replica(wrong, model)
    assert places(planned([wrong, right], model)) == [("llama", "right")]


def test_new_revision_is_loaded_before_the_old_one_is_unloaded() -> None:
    nodes, old, new = [a_node(), a_node()], a_model(), a_model(revision=2)
    serving = a_replica(nodes[0], old)
    plan = planned(nodes, new)
    assert places(plan) == [("llama", nodes[1].name)]
    assert not plan.drain
    a_replica(nodes[1], new)
    assert [each.replica for each in planned(nodes, new).drain] == [serving]


def test_new_revision_replaces_the_old_one_where_both_do_not_fit() -> None:
    """One at a time: with two nodes, one of the old ones serves on."""
    nodes, old, new = [a_node(), a_node()], a_model(), a_model(revision=2, min_replicas=2, max_replicas=2)
    first, second = a_replica(nodes[0], old), a_replica(nodes[1], old, in_flight=1)
    assert [(each.replica, each.keep) for each in planned(nodes, new).drain] == [(first, NOTHING)]
    nodes[0].replicas.clear()
    a_replica(nodes[0], old, ReplicaState.UNLOADING)
    assert not planned(nodes, new).drain
    nodes[0].replicas.clear()
    a_replica(nodes[0], new, ReplicaState.LOADING)
    assert not planned(nodes, new).drain
    nodes[0].replicas.clear()
    a_replica(nodes[0], new)
    assert [each.replica for each in planned(nodes, new).drain] == [second]


def test_load_of_an_old_revision_is_stopped() -> None:
    node, new = a_node(), a_model(revision=2)
    loading = a_replica(node, a_model(), ReplicaState.LOADING)
    assert planned([node], new).stop == [loading]


def test_removed_model_is_drained_and_its_loads_stop() -> None:
    node, model = a_node(slots=2), a_model()
    loaded, loading = a_replica(node, model), a_replica(node, model, ReplicaState.LOADING)
    plan = planned([node])
    assert [each.replica for each in plan.drain] == [loaded]
    assert plan.stop == [loading]


def test_drained_replica_is_unloaded_when_its_last_call_ended() -> None:
    node, model = a_node(slots=4), a_model(min_replicas=0, max_replicas=4)
    idle = a_replica(node, model, ReplicaState.DRAINING)
    a_replica(node, model, ReplicaState.DRAINING, in_flight=1)
    late = a_replica(node, model, ReplicaState.UNLOADING)
    a_replica(node, model, ReplicaState.UNLOADING, changed_at=NOW)
    assert planned([node], model).unload == [idle, late]
    resting = {"llama": {node.id: NOW + MINUTES}}
    assert not planned([node], model, rests=resting).unload, "its unload failed a moment ago"


def test_unsatisfiable_after_three_ticks_for_five_minutes() -> None:
    """R69, R70, R71: hysteresis; then placement is not tried until the time has passed or something changes."""
    nodes = [a_node("small", gib=1)]
    first = planned(nodes, a_model(gib=2)).unsatisfied[0]
    assert (first.ticks, first.until) == (1, None)
    third = planned(nodes, a_model(gib=2, unsatisfiable_ticks=2)).unsatisfied[0]
    assert (third.ticks, third.until) == (3, NOW + 5 * MINUTES)
    assert third.why == "0 of 1 replicas: small: it has too little free memory: 2.0 GiB are needed, 1.0 GiB are free."
    resting = a_model(gib=2, unsatisfiable_ticks=3, unsatisfiable_until=NOW + MINUTES)
    assert not planned(nodes, resting).unsatisfied
    again = planned(nodes, resting, capacity_changed=True).unsatisfied[0]
    assert (again.ticks, again.until) == (1, None)


def test_resting_model_is_placed_when_something_changed() -> None:
    """R72, R75, R86."""
    resting = a_model(unsatisfiable_ticks=3, unsatisfiable_until=NOW + MINUTES)
    assert not planned([a_node()], resting).place
    plan = planned([a_node()], resting, capacity_changed=True)
    assert len(plan.place) == 1
    assert plan.satisfied == ["llama"]


def test_idle_models_are_evicted_where_the_fewest_have_to_go() -> None:
    """H16: only on nodes that meet every other condition."""
    wanted = a_model("wanted", gib=4, selector="zone=a")
    one, two = a_model("one", gib=4, min_replicas=0), a_model("two", gib=2, min_replicas=0, max_replicas=0)
    single, double = (
        a_node("single", gib=4, labels={"zone": "a"}),
        a_node("double", gib=4, slots=2, labels={"zone": "a"}),
    )
    elsewhere = a_node("elsewhere", gib=4)
    a_replica(single, one)
    a_replica(double, two)
    a_replica(double, two)
    a_replica(elsewhere, one)
    plan = planned([double, single, elsewhere], wanted, one, two)
    assert plan.evict == [PlannedEviction("wanted", single.id, 4 * GIB)]
    assert not plan.unsatisfied


def test_models_at_their_minimum_are_not_evicted() -> None:
    node, wanted, other = a_node(gib=1), a_model("wanted"), a_model("other")
    a_replica(node, other)
    plan = planned([node], wanted, other)
    assert not plan.evict
    assert len(plan.unsatisfied) == 1


def test_nothing_is_evicted_while_room_is_being_made() -> None:
    node, wanted, other = (
        a_node(gib=2, slots=2),
        a_model("wanted", gib=2),
        a_model("other", min_replicas=0, max_replicas=0),
    )
    a_replica(node, other)
    a_replica(node, other, ReplicaState.DRAINING, in_flight=1)
    plan = planned([node], wanted, other)
    assert not any((plan.evict, plan.unsatisfied))


def test_spread_all_puts_one_on_each_matching_node() -> None:
    """3.2, R65."""
    nodes = [a_node(f"n{number}", slots=2, labels={"zone": "a"}) for number in range(3)]
    away, other = a_node("away", status=NodeStatus.OFFLINE, labels={"zone": "a"}), a_node("other")
    model = a_model(spread_all=True, min_replicas=0, max_replicas=0, selector="zone=a")
    a_replica(nodes[0], model)
    second = a_replica(nodes[0], model)
    plan = planned([*nodes, away, other], model)
    assert places(plan) == [("llama", "n1"), ("llama", "n2")]
    assert all(each.is_per_node for each in plan.place)
    assert [each.replica for each in plan.drain] == [second]


def test_spread_all_leaves_a_drained_node_at_once() -> None:
    nodes, model = [a_node("a"), a_node("b")], a_model(spread_all=True, min_replicas=0, max_replicas=0)
    for node in nodes:
        a_replica(node, model)
    nodes[0].status = NodeStatus.DRAINING
    assert [each.replica.node_id for each in planned(nodes, model).drain] == [nodes[0].id]


def test_a_failed_load_rests_longer_each_time() -> None:
    assert [rest_after(number).total_seconds() for number in (1, 2, 3, 6, 40)] == [30, 60, 120, 900, 900]


STATES = st.sampled_from(sorted(set(ReplicaState) - {ReplicaState.UNKNOWN}))
STATUSES = st.sampled_from([NodeStatus.HEALTHY, NodeStatus.HEALTHY, NodeStatus.UNHEALTHY, NodeStatus.DRAINING])
ROWS = st.lists(st.tuples(st.integers(0, 3), STATES, st.integers(0, 2), st.integers(1, 2)), max_size=8)


@given(
    statuses=st.lists(STATUSES, min_size=4, max_size=4),
    rows=ROWS,
    low=st.integers(0, 3),
    more=st.integers(0, 3),
    model=st.fixed_dictionaries(
        {"last_busy_at": st.sampled_from([None, NOW]), "wanted_at": st.sampled_from([None, NOW])}
    ),
)
def test_every_plan_keeps_the_rules(
    statuses: list[NodeStatus], rows: list[Any], low: int, more: int, model: Any
) -> None:
    """Never above the maximum, never a scale-down below the minimum, never up and down in one tick."""
    nodes = [a_node(slots=3, status=status, is_serving=status is not NodeStatus.UNHEALTHY) for status in statuses]
    wanted = a_model(revision=2, min_replicas=low, max_replicas=max(low + more, 1), **model)
    for place, state, calls, revision in rows:
        if nodes[place].free_index("llama") is not None:
            a_replica(nodes[place], wanted, state, in_flight=calls, revision=revision)
    plan = planned(nodes, wanted)
    settled = [
        each
        for node in nodes
        if node.status is NodeStatus.HEALTHY
        for each in node.replicas
        if each.revision == 2 and each.state in (ReplicaState.PLACING, ReplicaState.LOADING, ReplicaState.LOADED)
    ]
    drained = {each.replica.id for each in plan.drain}
    lost = [each for each in settled if each.id in drained or each in plan.stop]
    after = len(settled) + len(plan.place) - len(lost)
    assert not plan.place or after <= wanted.max_replicas
    assert not lost or after >= wanted.min_replicas
    assert not (plan.place and lost)
    assert all(each.replica.state is ReplicaState.LOADED for each in plan.drain)
    assert len(drained) == len(plan.drain)
