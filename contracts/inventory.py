"""HTTP shapes of what nodes have: inventory, drift, and what an admin decides over a node's own word."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from contracts.http import Shape
from contracts.messages import Installed
from contracts.node_http import MOST_REPLICAS, readable_budget


def _text_or_number(value: object) -> object:
    """`true` is no number here, and one complaint about all of it names the field."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("text or a number is expected")  # noqa: TRY004 - pydantic reports a ValueError only
    return value


def _readable(written: str | float) -> str:
    return readable_budget(str(written))


class NodeInventory(Shape):
    """The copy of a node's own list, and when it was taken."""

    node_id: str
    node_name: str
    seen_at: datetime | None = None
    """None: the node has never been asked"""
    backends: list[Installed] = Field(default_factory=list)


class BackendBuild(Shape):
    """One version of a backend, by its digest, and on how many nodes it is."""

    version: str
    digest: str
    nodes: int


class DifferingNode(Shape):
    """A node that has another build than most."""

    node_id: str
    node_name: str
    version: str
    digest: str


class BackendSpread(Shape):
    """One backend over the fleet. More than one build is drift."""

    family: str
    name: str
    nodes: int
    builds: list[BackendBuild] = Field(default_factory=list)
    """the one that most nodes have comes first"""
    differing: list[DifferingNode] = Field(default_factory=list)


class MaxReplicas(Shape):
    value: Annotated[int, BeforeValidator(_text_or_number)] = Field(ge=1, le=MOST_REPLICAS)


class MaxReplicasSet(Shape):
    max_replicas_per_model: int


class VramBudget(Shape):
    value: Annotated[str | int | float, BeforeValidator(_text_or_number), AfterValidator(_readable)]
    """"80%", "0.8", "12GB", "12GiB", a number of bytes; "" is no budget"""


class VramBudgetSet(Shape):
    vram_budget: str


class HandedBack(Shape):
    """What the node itself says counts again."""

    reset: bool = True
