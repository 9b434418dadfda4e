"""Stops the processes of a backend on a node. A direct message, not an operation, because nothing on disk changes."""

from dataclasses import dataclass

from nodesmith.contracts.nats.messages import StopBackend
from nodesmith.domain.eligibility import RULES, Obstacle, runs_backends
from nodesmith.domain.errors import NodeAway, ServiceUnavailable
from nodesmith.domain.node import Node, NodeStatus
from nodesmith.services.ports import BackendProcesses

_NOT_CONNECTED = (NodeStatus.OFFLINE, NodeStatus.PENDING)


@dataclass(frozen=True)
class BackendStop:
    processes: BackendProcesses

    async def stop(self, node: Node, backend: str, *, force: bool = False) -> None:
        """Publish the stop of a backend, or of all if the name is empty, and return.

        Nodes send no reply to it, so the status of the node is checked first.
        """
        if not runs_backends(node):
            raise RULES[Obstacle.NOT_FOR_BACKENDS].refusal(node)
        if node.status in _NOT_CONNECTED:
            raise NodeAway(f"Node {node.name} is {node.status}: nothing was stopped.", node=node.name)
        if not await self.processes.stop_backend(node.id, StopBackend(backend=backend, force=force)):
            raise ServiceUnavailable("NATS does not answer: nothing was stopped.")
