"""Timeouts of requests about models, and which nodes are asked."""

from datetime import UTC, datetime
from typing import Any

import pytest

from nodesmith.contracts.nats.running_models import ModelQuestion, ModelReply, ModelStopped, RunningModel, RunningModels
from nodesmith.domain.node import Node, NodeStatus, NodeType, Protocol
from nodesmith.services.nodes.running_models import NodeModels

NOW = datetime(2026, 11, 17, tzinfo=UTC)


def a_node(status: NodeStatus = NodeStatus.HEALTHY) -> Node:
    return Node(
        id=f"id-{status}",
        name=str(status),
        node_type=NodeType.BACKEND,
        protocol=Protocol.NODESMITH,
        status=status,
        created_at=NOW,
        updated_at=NOW,
    )


class TimedProcesses:
    """Answers at once, and records the asked nodes and their timeouts."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.limits: dict[str, float] = {}

    async def running(self, node_id: str, *, within: float) -> RunningModels:
        self.asked.append(node_id)
        self.limits["running"] = within
        return RunningModels(models=[RunningModel(model_id="llama", address="127.0.0.1:1")])

    async def unload(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelReply:
        self.limits["unload"] = within
        return ModelReply(success=True)

    async def stop(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelStopped:
        self.limits["stop"] = within
        return ModelStopped(matched=True, terminated=True)

    async def delete(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelReply:
        self.limits["delete"] = within
        return ModelReply(success=True)


@pytest.fixture
def processes() -> Any:
    return TimedProcesses()


@pytest.fixture
def models(processes: Any) -> NodeModels:
    return NodeModels(processes, processes, lambda: NOW)


async def test_node_gets_half_a_minute_to_unload_stop_and_delete_a_model(models: NodeModels, processes: Any) -> None:
    """S44: unload, stop and delete wait for a process to end; listing models does not."""
    await models.unload(a_node(), "llama")
    await models.stop(a_node(), "llama", 0)
    await models.delete(a_node(), "llama")
    assert processes.limits == {"running": 10, "unload": 30, "stop": 30, "delete": 30}


async def test_only_healthy_nodes_are_asked_what_runs_everywhere(models: NodeModels, processes: Any) -> None:
    """A drained, offline, unhealthy or pending node is not counted as a healthy one."""
    found = await models.everywhere([a_node(status) for status in NodeStatus if status is not NodeStatus.UNKNOWN])
    assert processes.asked == ["id-healthy"]
    assert [model.node_id for model in found] == ["id-healthy"]
    assert processes.limits["running"] == 2
