"""Stops the processes of a backend on a node. A direct message, not an operation, because nothing on disk changes."""

from dataclasses import dataclass

from nodesmith.contracts.http.operations import StopBody
from nodesmith.contracts.http.shared import Message
from nodesmith.contracts.nats.messages import StopBackend
from nodesmith.domain.eligibility import RULES, Obstacle, runs_backends
from nodesmith.domain.errors import NodeAway, ServiceUnavailable
from nodesmith.domain.node import Node, NodeStatus
from nodesmith.services.ports import BackendProcesses

_NOT_CONNECTED = (NodeStatus.OFFLINE, NodeStatus.PENDING)


@dataclass(frozen=True)
class BackendStop:
    processes: BackendProcesses

    async def stop(self, node: Node, body: StopBody) -> Message:
        """Publish the stop and return. Nodes send no reply to it, so the node's status is checked first."""
        if not runs_backends(node):
            raise RULES[Obstacle.NOT_FOR_BACKENDS].refusal(node)
        if node.status in _NOT_CONNECTED:
            raise NodeAway(f"Node {node.name} is {node.status}: nothing was stopped.", node=node.name)
        if not await self.processes.stop_backend(node.id, StopBackend(backend=body.backend, force=body.force)):
            raise ServiceUnavailable("NATS does not answer: nothing was stopped.")
        return Message(message=f"stop of {body.backend or 'every backend'} sent to {node.name}")
