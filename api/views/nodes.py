"""Views of nodes: the entity's fields under LocalAI's names."""

from collections.abc import Sequence

from pydantic import TypeAdapter

from nodesmith.contracts.http.nodes import NodeView
from nodesmith.domain.node import Node

_VIEWS = TypeAdapter(list[NodeView])
"""validates and writes a whole page at once: the cost per row dominates"""


def node_view(node: Node) -> NodeView:
    return NodeView.model_validate(node, from_attributes=True)


def nodes_json(nodes: Sequence[Node]) -> bytes:
    return _VIEWS.dump_json(_VIEWS.validate_python(nodes, from_attributes=True))
