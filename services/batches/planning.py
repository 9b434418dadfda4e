"""Batch planning: which nodes take part, which are left out and why, and which build each capability gets."""

from collections.abc import Sequence
from dataclasses import dataclass

from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.temporal.batches import BatchMember, Target
from nodesmith.contracts.temporal.operations import Intent
from nodesmith.domain.batch import MemberVerdict
from nodesmith.domain.eligibility import RULES, obstacle
from nodesmith.domain.errors import ConcreteBackend, InvalidRequest, NoBuildForNode, UnknownNode
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Node
from nodesmith.domain.selector import parse
from nodesmith.gallery.suitability import capability_of
from nodesmith.services.operations.intents import Intents
from nodesmith.services.ports import Inventory, NodeRegistry
from nodesmith.services.requested_work import RequestedBatch


@dataclass(frozen=True)
class PlannedBatch:
    """The targets of a batch, their builds, and the nodes left out."""

    builds: dict[str, Intent]
    """capability of a node -> its intent"""
    targets: tuple[Node, ...]
    left_out: tuple[BatchMember, ...]
    installed: dict[str, Installed]

    @property
    def wanted(self) -> Intent:
        """One intent that names the backend of the whole batch."""
        return next(iter(self.builds.values()))


@dataclass(frozen=True, kw_only=True)
class PlannedMember:
    """One node of a plan: the action and its cost."""

    node_id: str
    node_name: str
    action: str
    """a kind, `nothing` or `skip`"""
    reason: str = ""
    """why it is skipped, or does nothing"""
    current_version: str = ""
    bytes: int = 0
    """bytes to download"""
    free_disk: int | None = None
    suitable: bool = True
    """False: the node has not enough disk space"""
    outage: str = ""


@dataclass(frozen=True, kw_only=True)
class BatchPreview:
    """What a batch would do on each node."""

    backend: str
    version: str
    sha256: str
    members: Sequence[PlannedMember]
    targets: int
    skipped: int


@dataclass(frozen=True)
class BatchPlanner:
    nodes: NodeRegistry
    inventory: Inventory
    intents: Intents

    async def plan(self, request: RequestedBatch) -> PlannedBatch:
        """Plan a batch; raises when it would have no targets."""
        self._refuse_concrete(request)
        chosen = await self._chosen(request)
        builds, unsuited = self._builds(request, chosen)
        family = next(iter(builds.values())).family
        having = await self._having(family)
        suited = [node for node in chosen if node.id not in {each.node_id for each in unsuited}]
        targets, left_out = divide(suited, family, having, kind=request.kind, on_drained=request.on_drained)
        if not targets:
            raise _no_targets(request.kind, family, [*unsuited, *left_out])
        return PlannedBatch(await self.intents.pinned(builds), targets, (*unsuited, *left_out), having)

    async def retry(
        self, wanted: Intent, nodes: Sequence[Node], *, on_drained: bool
    ) -> tuple[tuple[Node, ...], tuple[BatchMember, ...]]:
        """Divide these nodes into those that can be retried now and those left out."""
        having = await self._having(wanted.family)
        return divide(nodes, wanted.family, having, kind=wanted.kind, on_drained=on_drained)

    async def current(self, wanted: Intent, node_ids: Sequence[str]) -> dict[str, str]:
        """Node -> the digest to replace or remove there, for nodes with a current inventory."""
        if not wanted.kind.rules.changes_installed:
            return {}
        return await self.inventory.certain(wanted.family, node_ids)

    async def _having(self, family: str) -> dict[str, Installed]:
        return {node_id: installed for node_id, _, installed in await self.inventory.having(family)}

    def _builds(self, request: RequestedBatch, chosen: Sequence[Node]) -> tuple[dict[str, Intent], list[BatchMember]]:
        """Resolve the build for each capability once; nodes without a suitable build are left out."""
        builds: dict[str, Intent] = {}
        unsuited: list[BatchMember] = []
        for node in chosen:
            capability = build_of(node)
            try:
                if capability not in builds:
                    builds[capability] = self.intents.wanted(request.kind, request, capability=capability)
            except NoBuildForNode as nothing:
                unsuited.append(_excluded(node, MemberVerdict.SKIPPED, nothing.message))
        if not builds:
            raise InvalidRequest(unsuited[0].detail if unsuited else "No node can take part.", field="backend")
        return builds, unsuited

    def _refuse_concrete(self, request: RequestedBatch) -> None:
        """Refuse a hardware-specific build unless the request names its nodes."""
        if request.nodes or request.uri or request.kind.rules.removes:
            return
        alternative = self.intents.catalogue.concrete_alternative(request.backend)
        if alternative is not None:
            instead = f" Use {alternative}, which selects the right build for every node." if alternative else ""
            raise ConcreteBackend(
                f"{request.backend} is a build for specific hardware and cannot go to every node.{instead}",
                meta_alternative=alternative,
            )

    async def _chosen(self, request: RequestedBatch) -> Sequence[Node]:
        choices = [bool(request.nodes), bool(request.selector), request.everywhere]
        if sum(choices) != 1:
            raise InvalidRequest("Give exactly one of nodes, selector and everywhere.", field="nodes")
        if request.nodes:
            return [await self._known(name) for name in dict.fromkeys(request.nodes)]
        everything = await self.nodes.list()
        if request.everywhere:
            return everything
        selector = parse(request.selector)
        matching = [node for node in everything if selector.matches(node.labels)]
        if not matching:
            raise InvalidRequest(f"The selector {request.selector} matches no node.", field="selector")
        return matching

    async def _known(self, name: str) -> Node:
        node = await self.nodes.find(name)
        if node is None:
            raise UnknownNode(f"There is no node {name}.", node=name)
        return node


def preview(plan: PlannedBatch) -> BatchPreview:
    """The plan for people: one entry per node, by name."""
    members = [*(_planned_member(plan, node) for node in plan.targets), *(_skipped(each) for each in plan.left_out)]
    return BatchPreview(
        backend=plan.wanted.backend,
        version=plan.wanted.version,
        sha256=plan.wanted.sha256,
        members=sorted(members, key=lambda member: member.node_name),
        targets=len(plan.targets),
        skipped=len(plan.left_out),
    )


def divide(
    nodes: Sequence[Node], family: str, having: dict[str, Installed], *, kind: Kind, on_drained: bool
) -> tuple[tuple[Node, ...], tuple[BatchMember, ...]]:
    """Divide nodes into those that take part and those left out."""
    judged = [(node, _why_not(node, family, having, kind=kind, on_drained=on_drained)) for node in nodes]
    return tuple(node for node, why in judged if why is None), tuple(why for _, why in judged if why is not None)


def target(node: Node) -> Target:
    return Target(node_id=node.id, node_name=node.name, protocol=node.protocol, build=build_of(node))


def build_of(node: Node) -> str:
    return capability_of(node.capability, node.gpu_vendor, node.total_vram)


def _why_not(
    node: Node, family: str, having: dict[str, Installed], *, kind: Kind, on_drained: bool
) -> BatchMember | None:
    """The verdict and reason when this node is left out; None when it takes part."""
    verdict, why = MemberVerdict.SKIPPED, ""
    if (found := obstacle(node, on_drained=on_drained)) is not None:
        why = f"it {RULES[found].tell(node)}"
    elif kind.rules.needs_installed and node.id not in having:
        why = f"{family} is not installed there"
    elif kind.rules.removes and node.id not in having:
        verdict, why = MemberVerdict.NOTHING_TO_DO, f"{family} is not installed there"
    return _excluded(node, verdict, why) if why else None


def _excluded(node: Node, verdict: MemberVerdict, why: str) -> BatchMember:
    return BatchMember(node_id=node.id, node_name=node.name, verdict=verdict, detail=why)


def _no_targets(kind: Kind, family: str, left_out: Sequence[BatchMember]) -> InvalidRequest:
    if kind.rules.needs_installed:
        return InvalidRequest(f"{family} is not installed on any of these nodes.", field="nodes")
    return InvalidRequest(f"No node can take part. {list_reasons(left_out)}".rstrip(), field="nodes")


def list_reasons(members: Sequence[BatchMember]) -> str:
    """The first five members, each with its reason."""
    return "; ".join(f"{each.node_name}: {each.detail}" for each in members[:5])


def _planned_member(plan: PlannedBatch, node: Node) -> PlannedMember:
    installed, wanted = plan.installed.get(node.id), plan.builds[build_of(node)]
    same = installed is not None and wanted.sha256 and installed.digest.endswith(wanted.sha256) and not wanted.force
    brings = wanted.kind.rules.needs_artifact
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


def _skipped(member: BatchMember) -> PlannedMember:
    return PlannedMember(node_id=member.node_id, node_name=member.node_name, action="skip", reason=member.detail)
