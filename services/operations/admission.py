"""Admission: turns a request of a person, a batch or a script into a durable operation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from nodesmith.contracts.temporal.operations import Intent, Limits, OperationInput, OperationRequest, Policy
from nodesmith.domain.eligibility import RULES, obstacle
from nodesmith.domain.errors import (
    NotInstalled,
    NotRetryable,
    UnknownNode,
    UnknownOperation,
)
from nodesmith.domain.idempotency import KeyClaim
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Node
from nodesmith.domain.operation import ENDED, State
from nodesmith.gallery.suitability import capability_of
from nodesmith.services.operations.idempotency import IdempotencyKeys, KeyedRequest
from nodesmith.services.operations.intents import Intents, named_uri
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.operations.orders import Orders, wanted_of
from nodesmith.services.ports import Inventory, NodeRegistry, Operations
from nodesmith.services.requested_work import RequestedBackend


@dataclass(frozen=True, kw_only=True)
class AcceptedOperation:
    """A durable operation, as its caller sees it."""

    op_id: str
    node_id: str
    node_name: str
    message: str
    joined: bool = False
    """the same operation was open already"""
    limits_not_applied: Sequence[str] = ()
    """requested limits that do not apply, because the joined operation keeps its own"""
    repeated: bool = False
    """a repeated request with the same idempotency key: this is the first answer"""


LOST_REPLICA = timedelta(minutes=2)
"""how long a load waits for a node that went away: then the model scheduler looks for another one"""


class Subject(NamedTuple):
    """What a response to the caller describes."""

    kind: Kind
    node_id: str
    node_name: str
    limits: Limits


def subject_of(request: OperationRequest) -> Subject:
    return Subject(request.wanted.kind, request.node_id, request.node_name, request.limits)


@dataclass(frozen=True)
class Admission:
    """Admits operations; nothing else may change what is installed on a node."""

    nodes: NodeRegistry
    inventory: Inventory
    operations: Operations
    lock: OperationLock
    orders: Orders
    intents: Intents
    keys: IdempotencyKeys
    policy: Policy
    clock: Callable[[], datetime]

    async def ask(
        self, kind: Kind, node: str, request: RequestedBackend, *, actor: str, idempotency_key: str | None = None
    ) -> AcceptedOperation:
        """Admit one operation on one node; returns once its run has started and its order is written."""
        target, limits = known(await self.nodes.find(node), node), limits_of(request)
        asked = KeyedRequest.of(self.keys, actor, idempotency_key, route=kind, target=target.id, body=request)
        # Look up the key before validation: a repeated request gets its first answer whatever has changed.
        if (earlier := await asked.earlier()) and earlier.job_id:
            return await self._repeat_answer(earlier, earlier.job_id, Subject(kind, target.id, target.name, limits))
        admissible(target, node, on_drained=request.on_drained)
        wanted = self.intents.wanted(kind, request, capability=capability(target))
        await self._refuse_not_installed(wanted, target)
        wanted = (await self.intents.pinned({"": wanted}))[""]
        if_current = await self._current_digest(wanted, target)

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
                if_current=if_current,
                created_at=self.clock(),
            )

        return await self._admit(asked, admitted)

    async def retry(
        self, op_id: str, *, actor: str, note: str = "", idempotency_key: str | None = None
    ) -> AcceptedOperation:
        """Admit a new operation with the intent of the old one's signed order; finished downloads are reused."""
        row, old = await self.operations.find(op_id), await self.operations.request(op_id)
        if row is None or old is None:
            raise UnknownOperation(f"There is no operation {op_id}.", op_id=op_id)
        body = {"reason": note}
        asked = KeyedRequest.of(self.keys, actor, idempotency_key, route="retry", target=op_id, body=body)
        if (earlier := await asked.earlier()) and earlier.job_id:
            return await self._repeat_answer(earlier, earlier.job_id, subject_of(old))
        if row.state not in ENDED or row.state is State.SUCCEEDED:
            raise NotRetryable(f"Operation {op_id} cannot be retried: it is {row.state}.", op_id=op_id, state=row.state)
        if not old.wanted.kind.rules.requestable:
            raise NotRetryable(
                f"Operation {op_id} belongs to the model scheduler, which tries again by itself.", op_id=op_id
            )
        ordered, target = await self._read_order(old)
        await self._refuse_not_installed(ordered, target)
        # The keys that a gallery trusts may have changed since the first time.
        wanted = (await self.intents.verified({"": ordered}))[""]
        if_current = await self._current_digest(wanted, target)

        def again(new_id: str) -> OperationRequest:
            to = {"node_id": target.id, "node_name": target.name, "protocol": target.protocol}
            to |= {"wanted": wanted, "if_current": if_current}
            changes = {**to, "op_id": new_id, "requested_by": actor, "note": note}
            return old.model_copy(update={**changes, "retry_of": op_id, "created_at": self.clock()})

        return await self._admit(asked, again)

    async def named_uri(self, op_id: str) -> str:
        """The uri that the caller of an operation gave; empty if a gallery supplied it."""
        order = await self.orders.read(op_id)
        return named_uri(wanted_of(order)) if order is not None else ""

    async def _read_order(self, old: OperationRequest) -> tuple[Intent, Node]:
        """Read the intent from the signed order: the row is written by the run, so it proves no request."""
        order = await self.orders.read(old.op_id)
        if order is None:
            raise NotRetryable(
                f"Operation {old.op_id} was never admitted, so there is nothing to retry. Ask for what you want.",
                op_id=old.op_id,
            )
        return wanted_of(order), admissible(await self.nodes.find(order.node), old.node_name)

    async def _current_digest(self, wanted: Intent, node: Node) -> str:
        """The digest that the order will replace or remove; empty when the inventory may be stale."""
        if not wanted.kind.rules.changes_installed:
            return ""
        return (await self.inventory.certain(wanted.family, [node.id])).get(node.id, "")

    async def _admit(self, asked: KeyedRequest, admitted: Callable[[str], OperationRequest]) -> AcceptedOperation:
        """Reserve the id, start the run, record the job id; an id reserved but not recorded is started again."""
        claim = await asked.claim()
        request = admitted(claim.op_id)
        if claim.job_id is not None:
            return await self._repeat_answer(claim, claim.job_id, subject_of(request))
        if not claim.is_new and await self.orders.read(claim.op_id) is not None:
            await asked.note(claim, claim.op_id)  # the first process started it and failed before recording that
            return await self._repeat_answer(claim, claim.op_id, subject_of(request))
        if not claim.is_new and await self._has_ended(claim.op_id):
            await asked.discard(claim)  # its run found no order in time and ended without any effect
            return await self._admit(asked, admitted)
        policy = operation_policy(self.policy, request.wanted.kind, request.limits)
        job_id, joined = await self.lock.admit(OperationInput(request=request, policy=policy))
        await asked.note(claim, job_id)
        return await self._accepted(job_id, subject_of(request), joined=joined)

    async def _has_ended(self, op_id: str) -> bool:
        standing = (await self.operations.states([op_id])).get(op_id)
        return standing is not None and standing[0] in ENDED

    async def _accepted(self, op_id: str, subject: Subject, *, joined: bool) -> AcceptedOperation:
        kept = await self._not_applied(op_id, subject.limits) if joined else []
        return AcceptedOperation(
            op_id=op_id,
            node_id=subject.node_id,
            node_name=subject.node_name,
            message=_joined(subject.kind, kept) if joined else started(subject.kind),
            joined=joined,
            limits_not_applied=kept,
        )

    async def _repeat_answer(self, claim: KeyClaim, job_id: str, subject: Subject) -> AcceptedOperation:
        """Return the first answer again, marked as repeated."""
        message = f"this request was accepted before, as operation {job_id}"
        first = await self._accepted(job_id, subject, joined=job_id != claim.op_id)
        return replace(first, message=message, repeated=True)

    async def _not_applied(self, op_id: str, asked: Limits) -> list[str]:
        """Name the limits of a joining request that differ: an operation keeps those of the request that started it."""
        running = await self.operations.request(op_id)
        theirs = (running.limits if running else Limits()).model_dump()
        wanted = asked.model_dump(exclude_none=True)
        return [name for name, value in wanted.items() if theirs[name] != value]

    async def _refuse_not_installed(self, wanted: Intent, node: Node) -> None:
        """Refuse only if the inventory is current; with a stale one the node itself decides."""
        if not wanted.kind.rules.needs_installed or node.id in await self.inventory.uncertain([node.id]):
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


def limits_of(request: RequestedBackend) -> Limits:
    return Limits(
        wait_for_node_s=request.wait_for_node_s, deadline_s=request.deadline_s, max_attempts=request.max_attempts
    )


def operation_policy(policy: Policy, kind: Kind, limits: Limits) -> Policy:
    """Apply the limits of the request; some kinds wait for their node without limit by default."""
    asked = {"wait_for_node": limits.wait_for_node_s, "deadline": limits.deadline_s}
    changes: dict[str, timedelta | int | None] = {"wait_for_node": None} if kind.rules.waits_without_limit else {}
    if kind.rules.scheduled:
        changes = {"wait_for_node": timedelta(0), "lost_after": min(policy.lost_after, LOST_REPLICA), "max_attempts": 1}
    changes |= {name: timedelta(seconds=seconds) for name, seconds in asked.items() if seconds is not None}
    if limits.max_attempts is not None:
        changes["max_attempts"] = limits.max_attempts
    return policy.model_copy(update=changes)


def capability(node: Node) -> str:
    """The capability with which a meta is resolved for this node."""
    return capability_of(node.capability, node.gpu_vendor, node.total_vram)


def known(node: Node | None, asked: str) -> Node:
    if node is None:
        raise UnknownNode(f"There is no node {asked}.", node=asked)
    return node


def admissible(node: Node | None, asked: str, *, on_drained: bool = False) -> Node:
    """Return the node if it accepts operations, else raise; an offline node accepts them too."""
    node = known(node, asked)
    if (why := obstacle(node, on_drained=on_drained)) is not None:
        raise RULES[why].refusal(node)
    return node


def started(kind: Kind) -> str:
    return f"backend {kind.rules.noun} started"


def _joined(kind: Kind, kept: Sequence[str]) -> str:
    message = f"this backend {kind} is running already"
    return f"{message} and keeps its own limits: {', '.join(kept)} as asked here is not applied" if kept else message
