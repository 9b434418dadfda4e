"""Admission: from a request to a durable operation, the same way for a person, a batch or a script."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from contracts.node_http import NodeView
from contracts.operation_http import InstallRequest, JobAccepted, RetryBody
from contracts.temporal import Limits, OperationInput, OperationRequest, Policy, Wanted
from domain.errors import (
    NodeDrained,
    NodeNotApproved,
    NodeNotForBackends,
    NotInstalled,
    NotRetryable,
    UnknownNode,
    UnknownOperation,
)
from domain.idempotency import Claim
from domain.node import NodeStatus, NodeType
from domain.operation import ENDED, Kind, State
from gallery.suitability import capability_of
from services.gate import Gate
from services.idempotency import IdempotencyKeys, KeyedRequest
from services.intents import Intents
from services.ports import Inventory, NodeRegistry, Operations

NEEDS_IT_INSTALLED = frozenset({Kind.UPGRADE, Kind.ROLLBACK})
STARTED = {
    Kind.INSTALL: "backend installation started",
    Kind.UPGRADE: "backend upgrade started",
    Kind.ROLLBACK: "backend rollback started",
    Kind.REMOVE: "backend removal started",
}


class Subject(NamedTuple):
    """What an answer is about."""

    kind: Kind
    node_id: str
    node_name: str


def subject_of(request: OperationRequest) -> Subject:
    return Subject(request.wanted.kind, request.node_id, request.node_name)


@dataclass(frozen=True)
class Admission:
    """The one door to a node's disk."""

    nodes: NodeRegistry
    inventory: Inventory
    operations: Operations
    gate: Gate
    intents: Intents
    keys: IdempotencyKeys
    policy: Policy
    clock: Callable[[], datetime]

    async def ask(
        self, kind: Kind, node: str, request: InstallRequest, *, actor: str, idempotency_key: str | None = None
    ) -> JobAccepted:
        """Admit one operation on one node; returns as soon as the workflow has started."""
        target = known(await self.nodes.find(node), node)
        asked = KeyedRequest.of(self.keys, actor, idempotency_key, route=kind, target=target.id, body=request)
        # Before the request is checked and its tag looked up: the same request is the same one, whatever has changed.
        if (earlier := await asked.earlier()) and earlier.job_id:
            return _repeated(earlier, earlier.job_id, Subject(kind, target.id, target.name))
        admissible(target, node, on_drained=request.on_drained)
        wanted = self.intents.wanted(kind, request, capability=capability(target))
        await self._refuse_not_installed(wanted, target)
        wanted = (await self.intents.pinned({"": wanted}))[""]
        limits = limits_of(request)

        def admitted(op_id: str) -> OperationRequest:
            return OperationRequest(
                op_id=op_id,
                node_id=target.id,
                node_name=target.name,
                protocol=target.protocol,
                wanted=wanted,
                requested_by=actor,
                note=request.reason,
                limits=limits,
                created_at=self.clock(),
            )

        return await self._admit(asked, admitted)

    async def retry(self, op_id: str, *, actor: str, note: str = "", idempotency_key: str | None = None) -> JobAccepted:
        """A new operation that names the old one; what was downloaded is not fetched again."""
        row, old = await self.operations.find(op_id), await self.operations.request(op_id)
        if row is None or old is None:
            raise UnknownOperation(f"There is no operation {op_id}.", op_id=op_id)
        body = RetryBody(reason=note)
        asked = KeyedRequest.of(self.keys, actor, idempotency_key, route="retry", target=op_id, body=body)
        if (earlier := await asked.earlier()) and earlier.job_id:
            return _repeated(earlier, earlier.job_id, subject_of(old))
        if row.state not in ENDED or row.state is State.SUCCEEDED:
            raise NotRetryable(f"Operation {op_id} cannot be retried: it is {row.state}.", op_id=op_id, state=row.state)
        target = admissible(await self.nodes.find(old.node_id), old.node_name)

        def again(new_id: str) -> OperationRequest:
            to = {"node_name": target.name, "protocol": target.protocol}
            changes = {**to, "op_id": new_id, "requested_by": actor, "note": note}
            return old.model_copy(update={**changes, "retry_of": op_id, "created_at": self.clock()})

        return await self._admit(asked, again)

    async def _admit(self, asked: KeyedRequest, admitted: Callable[[str], OperationRequest]) -> JobAccepted:
        """Reserve the id, start under it, note what it became; a reserved id whose start nobody noted starts again."""
        claim = await asked.claim()
        request = admitted(claim.op_id)
        if claim.job_id is not None:
            return _repeated(claim, claim.job_id, subject_of(request))
        if not claim.is_new and await self.operations.find(claim.op_id) is not None:
            await asked.note(claim, claim.op_id)  # whoever started it could not note it any more
            return _repeated(claim, claim.op_id, subject_of(request))
        policy = operation_policy(self.policy, request.wanted.kind, request.limits)
        job_id, joined = await self.gate.admit(OperationInput(request=request, policy=policy))
        await asked.note(claim, job_id)
        return _accepted(job_id, subject_of(request), joined=joined)

    async def _refuse_not_installed(self, wanted: Wanted, node: NodeView) -> None:
        """An inventory that may be out of date refuses nothing: then the node says whether it is there."""
        if wanted.kind not in NEEDS_IT_INSTALLED or node.id in await self.inventory.uncertain([node.id]):
            return
        catalogue = self.intents.catalogue
        families = {
            family
            for each in await self.inventory.of_node(node.id)
            for family in (each.family, catalogue.family(each.name))  # a LocalAI worker names builds, not families
        }
        if wanted.family not in families:
            raise NotInstalled(
                f"{wanted.family} is not installed on node {node.name}, so there is nothing to {wanted.kind}.",
                node=node.name,
                backend=wanted.family,
            )


def limits_of(request: InstallRequest) -> Limits:
    return Limits(
        wait_for_node_s=request.wait_for_node_s, deadline_s=request.deadline_s, max_attempts=request.max_attempts
    )


def operation_policy(policy: Policy, kind: Kind, limits: Limits) -> Policy:
    """A removal waits for its node for ever, unless somebody says otherwise."""
    asked = {"wait_for_node": limits.wait_for_node_s, "deadline": limits.deadline_s}
    changes: dict[str, timedelta | int | None] = {"wait_for_node": None} if kind is Kind.REMOVE else {}
    changes |= {name: timedelta(seconds=seconds) for name, seconds in asked.items() if seconds is not None}
    if limits.max_attempts is not None:
        changes["max_attempts"] = limits.max_attempts
    return policy.model_copy(update=changes)


def capability(node: NodeView) -> str:
    """What a meta is resolved with for this node."""
    return capability_of(node.capability, node.gpu_vendor, node.total_vram)


def known(node: NodeView | None, asked: str) -> NodeView:
    if node is None:
        raise UnknownNode(f"There is no node {asked}.", node=asked)
    return node


def admissible(node: NodeView | None, asked: str, *, on_drained: bool = False) -> NodeView:
    """The node, if operations may be asked of it at all; being away is no obstacle."""
    node = known(node, asked)
    if node.node_type is not NodeType.BACKEND:
        raise NodeNotForBackends(f"Node {node.name} is of type {node.node_type} and runs no backends.", node=node.name)
    if node.status is NodeStatus.PENDING:
        raise NodeNotApproved(f"Node {node.name} waits for approval.", node=node.name)
    if node.drained_at is not None and not on_drained:
        raise NodeDrained(f"Node {node.name} is drained.", node=node.name)
    return node


def _accepted(op_id: str, subject: Subject, *, joined: bool) -> JobAccepted:
    return JobAccepted(
        jobID=op_id,
        statusUrl=f"/api/backends/job/{op_id}",
        message=f"this backend {subject.kind} is running already" if joined else STARTED[subject.kind],
        joined=joined,
        operation=f"/api/operations/{op_id}",
        node=subject.node_name,
        node_id=subject.node_id,
    )


def _repeated(claim: Claim, job_id: str, subject: Subject) -> JobAccepted:
    """The answer of the first time, and that it is a repetition."""
    message = f"this request was accepted before, as operation {job_id}"
    first = _accepted(job_id, subject, joined=job_id != claim.op_id)
    return first.model_copy(update={"message": message, "repeated": True})
