"""Batches: from a wish for many nodes to a plan with frozen targets, and from there to one durable workflow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from contracts import batches as names
from contracts.batches import (
    BatchAccepted,
    BatchInput,
    BatchOrder,
    BatchPlan,
    BatchRequest,
    Member,
    PlannedMember,
    Target,
    Verdict,
    member_op_id,
)
from contracts.messages import Installed
from contracts.node_http import NodeView
from contracts.temporal import Policy, Wanted
from domain.errors import (
    ConcreteBackend,
    InvalidRequest,
    NoBuildForNode,
    NotRetryable,
    OperationConflict,
    OperationEnded,
    UnknownBatch,
    UnknownNode,
)
from domain.identity import derived_op_id, new_op_id
from domain.node import NodeStatus, NodeType
from domain.operation import Kind, State
from domain.selector import parse
from gallery.suitability import capability_of
from services.admission import STARTED, operation_policy
from services.gate import after_start
from services.intents import Intents
from services.ports import BatchRegistry, Inventory, NodeRegistry, OperationRuns

DEFAULT_MAX_FAILURES = 3
CAREFUL = frozenset({Kind.UPGRADE, Kind.REMOVE, Kind.ROLLBACK})
"""kinds that stop after a few failures unless told otherwise"""
NEEDS_IT_INSTALLED = frozenset({Kind.UPGRADE, Kind.ROLLBACK})
FAILED = frozenset({State.FAILED, State.EXPIRED, State.DEAD_LETTER, Verdict.NOT_STARTED, Verdict.CONFLICT})


@dataclass(frozen=True)
class Plan:
    """What a batch would do, node by node."""

    builds: dict[str, Wanted]
    """capability of a node -> what it is told"""
    targets: tuple[NodeView, ...]
    left_out: tuple[Member, ...]
    installed: dict[str, Installed]

    @property
    def wanted(self) -> Wanted:
        """What it is about, for those who need one name for it."""
        return next(iter(self.builds.values()))


@dataclass(frozen=True)
class BatchDesk:
    """Plans, starts, and passes orders on."""

    nodes: NodeRegistry
    inventory: Inventory
    batches: BatchRegistry
    runs: OperationRuns
    intents: Intents
    policy: Policy
    clock: Callable[[], datetime]

    async def plan(self, request: BatchRequest) -> BatchPlan:
        """What would be done, node by node; nothing is started."""
        plan = await self._plan(request)
        members = [*(_would(plan, node) for node in plan.targets), *(_left_out(each) for each in plan.left_out)]
        return BatchPlan(
            backend=plan.wanted.backend,
            version=plan.wanted.version,
            sha256=plan.wanted.sha256,
            members=sorted(members, key=lambda member: member.node_name),
            targets=len(plan.targets),
            skipped=len(plan.left_out),
        )

    async def start(self, request: BatchRequest, *, actor: str, idempotency_key: str | None = None) -> BatchAccepted:
        """Freeze the targets, pin version and digest, and start the one workflow that asks for the operations."""
        batch_id = derived_op_id("batch", actor, idempotency_key) if idempotency_key else new_op_id()
        if idempotency_key and (begun := await self.batches.request(batch_id)):
            return await self._repeated(begun, request)
        plan = await self._plan(request)
        batch = BatchInput(
            batch_id=batch_id,
            wanted=plan.wanted,
            builds=plan.builds,
            targets=tuple(_target(node, _build_of(node)) for node in plan.targets),
            left_out=plan.left_out,
            max_parallel=request.max_parallel,
            max_failures=_max_failures(request),
            policy=operation_policy(self.policy, request.kind, request),
            requested_by=actor,
            note=request.reason,
            created_at=self.clock(),
            on_drained=request.on_drained,
        )
        return await self._begin(batch)

    async def retry(self, batch_id: str, *, actor: str, note: str = "") -> BatchAccepted:
        """A new batch over the members that did not succeed, with the same version and digest."""
        before = await self.batches.request(batch_id)
        if before is None:
            raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
        failed = [each for each in await self.batches.members(batch_id) if each.state in FAILED]
        if not failed:
            raise NotRetryable(f"Batch {batch_id} has no member that failed.", batch=batch_id)
        found = [await self.nodes.find(member.node_id) for member in failed]
        again = before.model_copy(
            update={
                "batch_id": new_op_id(),
                "targets": tuple(_target(node, _build_of(node)) for node in found if node is not None),
                "requested_by": actor,
                "note": note,
                "retry_of": batch_id,
                "created_at": self.clock(),
            }
        )
        return await self._begin(again)

    async def order(self, batch_id: str, signal: str, *, actor: str) -> None:
        """Pause, resume or cancel."""
        if await self.batches.find(batch_id) is None:
            raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
        if not await self.runs.order_batch(batch_id, signal, BatchOrder(by=actor)):
            raise OperationEnded(f"Batch {batch_id} has ended already.", batch=batch_id)

    async def _begin(self, batch: BatchInput) -> BatchAccepted:
        await self.runs.start_batch(batch)
        await after_start(self.batches.open(batch))
        jobs = {each.node_name: member_op_id(batch.batch_id, each.node_id) for each in batch.targets}
        return _accepted(batch, jobs, {each.node_name: each.detail for each in batch.left_out})

    async def _repeated(self, begun: BatchInput, request: BatchRequest) -> BatchAccepted:
        """What was begun the first time: nodes, galleries and tags may have changed since."""
        if (begun.wanted.kind, begun.wanted.force) != (request.kind, request.force):
            raise OperationConflict(
                f"This Idempotency-Key was used for another request (batch {begun.batch_id}).", batch=begun.batch_id
            )
        members = await self.batches.members(begun.batch_id)
        jobs = {each.node_name: each.op_id for each in members if each.op_id}
        return _accepted(begun, jobs, {each.node_name: each.detail for each in members if not each.op_id})

    async def _plan(self, request: BatchRequest) -> Plan:
        self._refuse_concrete(request)
        chosen = await self._chosen(request)
        builds, unsuited = self._builds(request, chosen)
        family = next(iter(builds.values())).family
        having = {node_id: installed for node_id, _, installed in await self.inventory.having(family)}
        suited = [node for node in chosen if node.id not in {each.node_id for each in unsuited}]
        left_out = [member for node in suited if (member := _why_not(node, family, having, request))]
        skipped = {member.node_id for member in left_out}
        targets = tuple(node for node in suited if node.id not in skipped)
        if not targets:
            raise _nobody(request.kind, family, [*unsuited, *left_out])
        return Plan(await self.intents.pinned(builds), targets, (*unsuited, *left_out), having)

    def _builds(self, request: BatchRequest, chosen: Sequence[NodeView]) -> tuple[dict[str, Wanted], list[Member]]:
        """Settle what each kind of node is told, once; nodes that no build fits are left out by name."""
        builds: dict[str, Wanted] = {}
        unsuited: list[Member] = []
        for node in chosen:
            capability = _build_of(node)
            try:
                if capability not in builds:
                    builds[capability] = self.intents.wanted(request.kind, request, capability=capability)
            except NoBuildForNode as nothing:
                unsuited.append(_left_member(node, Verdict.SKIPPED, nothing.message))
        if not builds:
            raise InvalidRequest(unsuited[0].detail if unsuited else "No node is left to do it on.", field="backend")
        return builds, unsuited

    def _refuse_concrete(self, request: BatchRequest) -> None:
        """A build for some hardware goes to nodes that somebody named, never to everybody."""
        if request.nodes or request.uri or request.kind is Kind.REMOVE:
            return
        alternative = self.intents.catalogue.concrete_alternative(request.backend)
        if alternative is not None:
            instead = f" Ask for {alternative}, which is the right build on every node." if alternative else ""
            raise ConcreteBackend(
                f"{request.backend} is a build for some hardware only and cannot go to every node.{instead}",
                meta_alternative=alternative,
            )

    async def _chosen(self, request: BatchRequest) -> Sequence[NodeView]:
        ways = [bool(request.nodes), bool(request.selector), request.everywhere]
        if sum(ways) != 1:
            raise InvalidRequest("Say where: nodes, selector or everywhere, and only one of them.", field="nodes")
        if request.nodes:
            return [await self._known(name) for name in dict.fromkeys(request.nodes)]
        everybody = await self.nodes.list()
        if request.everywhere:
            return everybody
        selector = parse(request.selector)
        matching = [node for node in everybody if selector.matches(node.labels)]
        if not matching:
            raise InvalidRequest(f"The selector {request.selector} matches no node.", field="selector")
        return matching

    async def _known(self, name: str) -> NodeView:
        node = await self.nodes.find(name)
        if node is None:
            raise UnknownNode(f"There is no node {name}.", node=name)
        return node


def _accepted(batch: BatchInput, jobs: dict[str, str], skipped: dict[str, str]) -> BatchAccepted:
    return BatchAccepted(
        batch_id=batch.batch_id,
        jobID=batch.batch_id,
        statusUrl=f"/api/backends/job/{batch.batch_id}",
        message=STARTED[batch.wanted.kind],
        jobs=jobs,
        skipped=skipped,
    )


def _why_not(node: NodeView, family: str, having: dict[str, Installed], request: BatchRequest) -> Member | None:
    """Why this node is left out, in words; None when it takes part."""
    verdict, why = Verdict.SKIPPED, ""
    if node.node_type is not NodeType.BACKEND:
        why = f"it is of type {node.node_type} and runs no backends"
    elif node.status is NodeStatus.PENDING:
        why = "it waits for approval"
    elif node.drained_at is not None and not request.on_drained:
        why = "it is drained"
    elif request.kind in NEEDS_IT_INSTALLED and node.id not in having:
        why = f"{family} is not installed there"
    elif request.kind is Kind.REMOVE and node.id not in having:
        verdict, why = Verdict.NOTHING_TO_DO, f"{family} is not installed there"
    return _left_member(node, verdict, why) if why else None


def _left_member(node: NodeView, verdict: Verdict, why: str) -> Member:
    return Member(node_id=node.id, node_name=node.name, verdict=verdict, detail=why)


def _nobody(kind: Kind, family: str, left_out: Sequence[Member]) -> InvalidRequest:
    if kind in NEEDS_IT_INSTALLED:
        return InvalidRequest(f"{family} is not installed on any of these nodes.", field="nodes")
    named = "; ".join(f"{each.node_name}: {each.detail}" for each in left_out[:5])
    return InvalidRequest(f"No node is left to do it on. {named}".rstrip(), field="nodes")


def _would(plan: Plan, node: NodeView) -> PlannedMember:
    installed, wanted = plan.installed.get(node.id), plan.builds[_build_of(node)]
    same = installed is not None and wanted.sha256 and installed.digest.endswith(wanted.sha256) and not wanted.force
    brings = wanted.kind in (Kind.INSTALL, Kind.UPGRADE)
    fits = node.available_disk is None or not brings or node.available_disk > wanted.size
    return PlannedMember(
        node_id=node.id,
        node_name=node.name,
        action="nothing" if same else str(wanted.kind),
        reason="it is installed already" if same else "" if fits else "not enough disk space",
        current_version=installed.version if installed else "",
        bytes=wanted.size if brings and not same else 0,
        free_disk=node.available_disk,
        suitable=fits,
        outage="none until the swap" if installed and not same else "none",
    )


def _build_of(node: NodeView) -> str:
    return capability_of(node.capability, node.gpu_vendor, node.total_vram)


def _left_out(member: Member) -> PlannedMember:
    return PlannedMember(node_id=member.node_id, node_name=member.node_name, action="skip", reason=member.detail)


def _target(node: NodeView, build: str) -> Target:
    return Target(node_id=node.id, node_name=node.name, protocol=node.protocol, build=build)


def _max_failures(request: BatchRequest) -> int | None:
    if request.max_failures is not None:
        return request.max_failures
    return DEFAULT_MAX_FAILURES if request.kind in CAREFUL else None


ORDERS = {"pause": names.SIGNAL_PAUSE, "resume": names.SIGNAL_RESUME, "cancel": names.SIGNAL_CANCEL}
