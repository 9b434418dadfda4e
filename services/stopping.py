"""Stop: what runs of a backend on a node is told to end. A direct request, no operation: nothing on disk changes."""

from dataclasses import dataclass

from contracts.http import Message
from contracts.messages import StopBackend
from contracts.node_http import NodeView
from contracts.operation_http import StopBody
from domain.errors import NodeAway, NodeNotForBackends, ServiceUnavailable
from domain.node import NodeStatus, NodeType
from services.ports import BackendProcesses

_NOBODY_HEARS = (NodeStatus.OFFLINE, NodeStatus.PENDING)


@dataclass(frozen=True)
class Stopping:
    processes: BackendProcesses

    async def stop(self, node: NodeView, body: StopBody) -> Message:
        """Say so and come back: nodes do not answer to this one, so being away is looked up before."""
        if node.node_type is not NodeType.BACKEND:
            raise NodeNotForBackends(f"Node {node.name} is of type {node.node_type} and runs no backends.")
        if node.status in _NOBODY_HEARS:
            raise NodeAway(f"Node {node.name} is {node.status}: nothing was stopped.", node=node.name)
        if not await self.processes.stop_backend(node.id, StopBackend(backend=body.backend, force=body.force)):
            raise ServiceUnavailable("NATS does not answer: nothing was stopped.")
        return Message(message=f"stop of {body.backend or 'every backend'} sent to {node.name}")
