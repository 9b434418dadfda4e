"""From a wish for many nodes to a plan: who takes part, who is left out and why, and what each kind of node gets."""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.batches import BatchPlan, BatchRequest, Member, PlannedMember, Target, Verdict
from contracts.messages import Installed
from contracts.node_http import NodeView
from contracts.temporal import Wanted
from domain.errors import ConcreteBackend, InvalidRequest, NoBuildForNode, UnknownNode
from domain.node import NodeStatus, NodeType
from domain.operation import Kind
from domain.selector import parse
from gallery.suitability import capability_of
from services.admission import NEEDS_IT_INSTALLED
from services.intents import Intents
from services.ports import Inventory, NodeRegistry


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
class Planner:
    nodes: NodeRegistry
    inventory: Inventory
    intents: Intents

    async def plan(self, request: BatchRequest) -> Plan:
        """Raises when nothing would be done: a batch without targets never starts."""
        self._refuse_concrete(request)
        chosen = await self._chosen(request)
        builds, unsuited = self._builds(request, chosen)
        family = next(iter(builds.values())).family
        having = await self._having(family)
        suited = [node for node in chosen if node.id not in {each.node_id for each in unsuited}]
        targets, left_out = divided(suited, family, having, kind=request.kind, on_drained=request.on_drained)
        if not targets:
            raise _nobody(request.kind, family, [*unsuited, *left_out])
        return Plan(await self.intents.pinned(builds), targets, (*unsuited, *left_out), having)

    async def again(
        self, wanted: Wanted, nodes: Sequence[NodeView], *, on_drained: bool
    ) -> tuple[tuple[NodeView, ...], tuple[Member, ...]]:
        """Who of these can take part in a retry now, and who cannot."""
        having = await self._having(wanted.family)
        return divided(nodes, wanted.family, having, kind=wanted.kind, on_drained=on_drained)

    async def _having(self, family: str) -> dict[str, Installed]:
        return {node_id: installed for node_id, _, installed in await self.inventory.having(family)}

    def _builds(self, request: BatchRequest, chosen: Sequence[NodeView]) -> tuple[dict[str, Wanted], list[Member]]:
        """Settle what each kind of node is told, once; nodes that no build fits are left out by name."""
        builds: dict[str, Wanted] = {}
        unsuited: list[Member] = []
        for node in chosen:
            capability = build_of(node)
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


def described(plan: Plan) -> BatchPlan:
    """The plan as people see it before anything is started."""
    members = [*(_would(plan, node) for node in plan.targets), *(_left_out(each) for each in plan.left_out)]
    return BatchPlan(
        backend=plan.wanted.backend,
        version=plan.wanted.version,
        sha256=plan.wanted.sha256,
        members=sorted(members, key=lambda member: member.node_name),
        targets=len(plan.targets),
        skipped=len(plan.left_out),
    )


def divided(
    nodes: Sequence[NodeView], family: str, having: dict[str, Installed], *, kind: Kind, on_drained: bool
) -> tuple[tuple[NodeView, ...], tuple[Member, ...]]:
    """Those who take part, and those who are left out."""
    judged = [(node, _why_not(node, family, having, kind=kind, on_drained=on_drained)) for node in nodes]
    return tuple(node for node, why in judged if why is None), tuple(why for _, why in judged if why is not None)


def target(node: NodeView) -> Target:
    return Target(node_id=node.id, node_name=node.name, protocol=node.protocol, build=build_of(node))


def build_of(node: NodeView) -> str:
    return capability_of(node.capability, node.gpu_vendor, node.total_vram)


def _why_not(
    node: NodeView, family: str, having: dict[str, Installed], *, kind: Kind, on_drained: bool
) -> Member | None:
    """Why this node is left out, in words; None when it takes part."""
    verdict, why = Verdict.SKIPPED, ""
    if node.node_type is not NodeType.BACKEND:
        why = f"it is of type {node.node_type} and runs no backends"
    elif node.status is NodeStatus.PENDING:
        why = "it waits for approval"
    elif node.drained_at is not None and not on_drained:
        why = "it is drained"
    elif kind in NEEDS_IT_INSTALLED and node.id not in having:
        why = f"{family} is not installed there"
    elif kind is Kind.REMOVE and node.id not in having:
        verdict, why = Verdict.NOTHING_TO_DO, f"{family} is not installed there"
    return _left_member(node, verdict, why) if why else None


def _left_member(node: NodeView, verdict: Verdict, why: str) -> Member:
    return Member(node_id=node.id, node_name=node.name, verdict=verdict, detail=why)


def _nobody(kind: Kind, family: str, left_out: Sequence[Member]) -> InvalidRequest:
    if kind in NEEDS_IT_INSTALLED:
        return InvalidRequest(f"{family} is not installed on any of these nodes.", field="nodes")
    return InvalidRequest(f"No node is left to do it on. {named(left_out)}".rstrip(), field="nodes")


def named(members: Sequence[Member]) -> str:
    """The first few of them, each with its reason."""
    return "; ".join(f"{each.node_name}: {each.detail}" for each in members[:5])


def _would(plan: Plan, node: NodeView) -> PlannedMember:
    installed, wanted = plan.installed.get(node.id), plan.builds[build_of(node)]
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


def _left_out(member: Member) -> PlannedMember:
    return PlannedMember(node_id=member.node_id, node_name=member.node_name, action="skip", reason=member.detail)
