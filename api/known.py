"""A node that a path names."""

from typing import Annotated

from fastapi import Path

from api.parts import Parts
from contracts.node_http import NodeView
from domain.errors import UnknownNode

Node = Annotated[str, Path(description="Id or name of the node.")]


async def known_node(parts: Parts, node: str) -> NodeView:
    known = await parts.nodes.find(node)
    if known is None:
        raise UnknownNode(f"There is no node {node}.", node=node)
    return known
