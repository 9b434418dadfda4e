"""Look up the node that a path names."""

from typing import Annotated

from fastapi import Path

from nodesmith.api.dependencies import Dependencies
from nodesmith.domain.errors import UnknownNode
from nodesmith.domain.node import Node

NodeName = Annotated[str, Path(description="Id or name of the node.")]


async def known_node(deps: Dependencies, node: str) -> Node:
    known = await deps.nodes.find(node)
    if known is None:
        raise UnknownNode(f"There is no node {node}.", node=node)
    return known
