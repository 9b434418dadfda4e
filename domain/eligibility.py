"""Eligibility: may this node get new work, and why not. One table of rules; `store` derives its SQL from it."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from nodesmith.domain.errors import NodeDrained, NodeNotApproved, NodeNotForBackends, NodesmithError, UnknownNode
from nodesmith.domain.node import Node, NodeType


class Obstacle(enum.StrEnum):
    """Why a node may not get new work. An absent node may: the operation waits for it."""

    NOT_FOR_BACKENDS = "not_for_backends"
    NOT_APPROVED = "not_approved"
    DRAINED = "drained"


class Check(enum.Enum):
    """How a rule looks at a fact."""

    DIFFERS = enum.auto()
    IS_SET = enum.auto()
    IS_NOT_SET = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRule:
    """One obstacle: a fact of the node, the check that finds it, and the words for people."""

    fact: str
    """attribute of `Node`, and column of the table `nodes`"""
    check: Check
    value: str = ""
    """for `DIFFERS`"""
    waived_by_on_drained: bool = False
    """a request with `on_drained` ignores it"""
    error: type[NodesmithError]
    words: str
    """continues "Node n1 ..." or "it ...", with facts of the node in braces"""

    def hinders(self, node: Node) -> bool:
        fact = getattr(node, self.fact)
        match self.check:
            case Check.DIFFERS:
                return bool(fact != self.value)
            case Check.IS_SET:
                return fact is not None
            case Check.IS_NOT_SET:
                return fact is None

    def tell(self, node: Node) -> str:
        return self.words.format(node_type=node.node_type)

    def refusal(self, node: Node) -> NodesmithError:
        return self.error(f"Node {node.name} {self.tell(node)}.", node=node.name)


RULES: Mapping[Obstacle, WorkRule] = {
    Obstacle.NOT_FOR_BACKENDS: WorkRule(
        fact="node_type",
        check=Check.DIFFERS,
        value=NodeType.BACKEND.value,
        error=NodeNotForBackends,
        words="is of type {node_type} and runs no backends",
    ),
    Obstacle.NOT_APPROVED: WorkRule(
        fact="approved_at", check=Check.IS_NOT_SET, error=NodeNotApproved, words="waits for approval"
    ),
    Obstacle.DRAINED: WorkRule(
        fact="drained_at", check=Check.IS_SET, waived_by_on_drained=True, error=NodeDrained, words="is drained"
    ),
}
"""in the order in which they are reported"""

REFUSALS: tuple[type[NodesmithError], ...] = (UnknownNode, *(rule.error for rule in RULES.values()))
"""errors of a request for a node that may not get work"""


def obstacle(node: Node, *, on_drained: bool = False) -> Obstacle | None:
    """Return the first reason why the node may not get new work; None if it may."""
    for why, rule in RULES.items():
        if not (on_drained and rule.waived_by_on_drained) and rule.hinders(node):
            return why
    return None


def runs_backends(node: Node) -> bool:
    return not RULES[Obstacle.NOT_FOR_BACKENDS].hinders(node)
