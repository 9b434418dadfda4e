"""Loads and unloads of replicas: admits them as operations, and asks for a backend that the node does not have."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from nodesmith.contracts.nats.loads import LoadOrder
from nodesmith.contracts.temporal.operations import Intent, Limits, OperationInput, OperationRequest, Policy
from nodesmith.domain.deployment import LoadSpec
from nodesmith.domain.errors import NodeCannot, OperationConflict
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Node, Protocol
from nodesmith.domain.replica import Replica
from nodesmith.services.operations.admission import Admission, admissible, known, operation_policy
from nodesmith.services.operations.intents import Intents
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.ports import Inventory, NodeRegistry
from nodesmith.services.requested_work import RequestedBackend

SCHEDULER = "model scheduler"
"""who asks for loads, unloads and the backends that they need"""


@dataclass(frozen=True)
class ModelLoads:
    """Starts the operations of replicas, under the ids that their rows hold; implements `services.models.ports.Loads`.

    Only a process with the control plane's keys can do that: nodes carry out signed orders only.
    """

    nodes: NodeRegistry
    inventory: Inventory
    admission: Admission
    lock: OperationLock
    intents: Intents
    policy: Policy
    clock: Callable[[], datetime]

    async def start_load(self, replica: Replica, spec: LoadSpec) -> None:
        """Start the load, or join it; it waits for the installation of a missing backend."""
        node = _refuse_localai(admissible(await self.nodes.find(replica.node_id), replica.node_id))
        for file in spec.files:
            self.intents.check_uri(file.uri)
        family = self.intents.catalogue.family(spec.backend)
        wanted = _wanted(Kind.LOAD, replica, family)
        after = await self._ask_for_backend(node, spec, family)
        await self._admit(replica, node, wanted, LoadOrder.of(spec), after=after)

    async def start_unload(self, replica: Replica) -> None:
        """Start the unload, or join it; also on a node that gets no new work."""
        node = _refuse_localai(known(await self.nodes.find(replica.node_id), replica.node_id))
        await self._admit(replica, node, _wanted(Kind.UNLOAD, replica))

    async def _admit(
        self, replica: Replica, node: Node, wanted: Intent, load: LoadOrder | None = None, *, after: str = ""
    ) -> None:
        request = OperationRequest(
            op_id=replica.op_id,
            node_id=node.id,
            node_name=node.name,
            protocol=node.protocol,
            wanted=wanted,
            requested_by=SCHEDULER,
            after=after,
            created_at=self.clock(),
        )
        policy = operation_policy(self.policy, wanted.kind, Limits())
        await self.lock.admit(OperationInput(request=request, policy=policy), load)

    async def _ask_for_backend(self, node: Node, spec: LoadSpec, family: str) -> str:
        """Return the operation that installs a missing backend; empty if the node has it, or its list is stale."""
        if node.id in await self.inventory.uncertain([node.id]):
            return ""
        if family in {each.family for each in await self.inventory.of_node(node.id)}:
            return ""
        request = RequestedBackend(backend=spec.backend, reason=f"needed to load {spec.model}")
        try:
            return (await self.admission.ask(Kind.INSTALL, node.id, request, actor=SCHEDULER)).op_id
        except OperationConflict as conflict:
            return str(conflict.facts.get("op_id", ""))


def _wanted(kind: Kind, replica: Replica, family: str = "") -> Intent:
    """The node knows itself which backend runs a replica that it unloads."""
    return Intent(
        kind=kind,
        backend=replica.key,
        family=family,
        model=replica.model,
        replica_index=replica.index,
        revision=replica.revision,
    )


def _refuse_localai(node: Node) -> Node:
    if node.protocol is Protocol.LOCALAI:
        raise NodeCannot(
            f"Node {node.name} is a LocalAI worker: it cannot verify signed orders, so no models are loaded there.",
            node=node.name,
            routable=False,
        )
    return node
