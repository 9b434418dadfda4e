"""Addresses of replicas: a process that was started again listens somewhere else, and its node reports that."""

import pytest

from nodesmith.domain.replica import ReplicaState, ReportedReplica
from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import Nodes
from tests.store.clock import SetClock
from tests.store.models import Stage, gpu_node


@pytest.fixture
async def stage(database: Database, clock: SetClock) -> Stage:
    stage = Stage(database, clock)
    await stage.empty()
    return stage


async def test_a_reported_address_replaces_the_known_one(stage: Stage, nodes: Nodes) -> None:
    """After an upgrade or a crash the replica has another port; calls to the old one would fail."""
    model, node = await stage.deploy(), await gpu_node(nodes)
    replica = await stage.load(model, node)
    moved = ReportedReplica(
        model="llama", index=0, revision=replica.revision, address="127.0.0.1:9", op_id=replica.op_id
    )
    await stage.replicas.reported(node.id, node.boot_id, replica.node_seq + 1, [moved])
    (row,) = await stage.of_node(node.id)
    assert (row.id, row.state, row.address) == (replica.id, ReplicaState.LOADED, "127.0.0.1:9")


async def test_an_older_report_does_not_move_a_replica(stage: Stage, nodes: Nodes) -> None:
    model, node = await stage.deploy(), await gpu_node(nodes)
    replica = await stage.load(model, node)
    old = ReportedReplica(model="llama", index=0, address="127.0.0.1:9", op_id=replica.op_id)
    await stage.replicas.reported(node.id, node.boot_id, replica.node_seq, [old])
    (row,) = await stage.of_node(node.id)
    assert row.address == replica.address
