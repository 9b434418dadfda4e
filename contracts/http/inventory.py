"""HTTP shapes of inventory, drift, and an admin's overrides of what a node reports."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from nodesmith.contracts.http.shared import Shape, example
from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.node_fields import MOST_REPLICAS, readable_budget


def _text_or_number(value: object) -> object:
    """Reject `true` as a number, with one message that names the field."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("text or a number is expected")  # noqa: TRY004 - pydantic reports a ValueError only
    return value


def _readable(written: str | float) -> str:
    return readable_budget(str(written))


class NodeInventory(Shape):
    """The stored copy of a node's list, and when it was read."""

    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    seen_at: datetime | None = None
    """None: the node has never been read"""
    backends: list[Installed] = Field(default_factory=list)
    """what is on the node's disk"""


class BackendBuild(Shape):
    """One version of a backend, by its digest, and its number of nodes."""

    version: str
    """its version"""
    digest: str
    """its digest"""
    nodes: int
    """how many nodes have it"""


class DifferingNode(Shape):
    """A node with a different build than most nodes."""

    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    version: str
    """the version there"""
    digest: str
    """the digest there"""


class BackendSpread(Shape):
    """One backend over the fleet. More than one build is drift."""

    family: str
    """the name under which it is locked and stored on a node"""
    name: str
    """its name"""
    nodes: int
    """how many nodes have it"""
    builds: list[BackendBuild] = Field(default_factory=list)
    """the build that most nodes have comes first"""
    differing: list[DifferingNode] = Field(default_factory=list)
    """nodes with another build than most"""


class MaxReplicas(Shape):
    model_config = example(value=4)

    value: Annotated[int, BeforeValidator(_text_or_number)] = Field(ge=1, le=MOST_REPLICAS)
    """replicas of one model that the node may run"""


class MaxReplicasSet(Shape):
    max_replicas_per_model: int


class VramBudget(Shape):
    model_config = example(value="80%")

    value: Annotated[str | int | float, BeforeValidator(_text_or_number), AfterValidator(_readable)]
    """"80%", "0.8", "12GB", "12GiB", or a number of bytes; "" means no budget"""


class VramBudgetSet(Shape):
    vram_budget: str


class OverrideRemoved(Shape):
    """The node's own value is effective again."""

    reset: bool = True
