from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from nodesmith.domain.node import NodeFacts, NodeStatus, status_of

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)
ALIVE = NodeFacts(approved_at=LONG_AGO, last_heartbeat=NOW - timedelta(seconds=5))


def status(facts: NodeFacts, listening_since: datetime = LONG_AGO) -> NodeStatus:
    return status_of(facts, now=NOW, listening_since=listening_since)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (ALIVE, NodeStatus.HEALTHY),
        (NodeFacts(), NodeStatus.PENDING),
        (replace(ALIVE, last_heartbeat=None), NodeStatus.OFFLINE),
        (replace(ALIVE, last_heartbeat=NOW - timedelta(seconds=60)), NodeStatus.HEALTHY),
        (replace(ALIVE, last_heartbeat=NOW - timedelta(seconds=61)), NodeStatus.OFFLINE),
        (replace(ALIVE, left_at=NOW), NodeStatus.OFFLINE),
        (replace(ALIVE, leaving_at=NOW), NodeStatus.DRAINING),
        (replace(ALIVE, leaving_at=LONG_AGO, left_at=NOW), NodeStatus.OFFLINE),
        (replace(ALIVE, drained_at=LONG_AGO), NodeStatus.DRAINING),
        (replace(ALIVE, unreachable_since=NOW), NodeStatus.UNHEALTHY),
    ],
)
def test_status_follows_from_the_facts(facts: NodeFacts, expected: NodeStatus) -> None:
    assert status(facts) is expected


@pytest.mark.parametrize("fact", ["drained_at", "leaving_at", "left_at", "last_heartbeat", "unreachable_since"])
def test_no_other_fact_bypasses_approval(fact: str) -> None:
    assert status(replace(NodeFacts(), **{fact: NOW})) is NodeStatus.PENDING


@pytest.mark.parametrize("fact", ["left_at", "unreachable_since", "leaving_at"])
def test_an_admins_drain_outranks_what_the_node_does(fact: str) -> None:
    assert status(replace(ALIVE, drained_at=LONG_AGO, **{fact: NOW})) is NodeStatus.DRAINING


def test_a_node_that_left_is_offline_despite_a_recent_heartbeat() -> None:
    assert status(replace(ALIVE, last_heartbeat=NOW, left_at=NOW - timedelta(seconds=1))) is NodeStatus.OFFLINE


def test_a_silent_node_is_offline_though_it_was_unreachable_before() -> None:
    silent = replace(ALIVE, last_heartbeat=LONG_AGO, unreachable_since=LONG_AGO)
    assert status(silent) is NodeStatus.OFFLINE


def test_a_stall_of_the_control_plane_takes_no_node_offline() -> None:
    silent = replace(ALIVE, last_heartbeat=NOW - timedelta(hours=1))
    assert status(silent, listening_since=NOW - timedelta(seconds=30)) is NodeStatus.HEALTHY
    assert status(silent, listening_since=NOW - timedelta(seconds=61)) is NodeStatus.OFFLINE


def test_a_node_that_never_sent_a_heartbeat_is_not_taken_for_healthy_after_a_stall() -> None:
    assert status(replace(ALIVE, last_heartbeat=None), listening_since=NOW) is NodeStatus.OFFLINE
