"""HTTP shapes of what runs on a node: its models, and what its backends write."""

from datetime import datetime
from enum import auto

from pydantic import Field

from contracts.http import Message, Shape
from domain.wire import WireEnum

MOST_LINES = 2000
LONGEST_WAIT_S = 25.0
"""that a question for more output is held open; clients give up later than that"""


class NodeModel(Shape):
    """A model that runs on a node, as the node says; LocalAI's keys, ours beside them."""

    id: str
    node_id: str
    model_name: str
    replica_index: int = 0
    address: str = ""
    """as the node itself sees it: 127.0.0.1:<port>"""
    state: str = "loaded"
    """what a node reports is there; what is being stopped is left out"""
    in_flight: int = 0
    """not known here: calls go to the backends directly"""
    last_used: datetime | None = None
    backend_type: str | None = None
    created_at: datetime
    updated_at: datetime
    """when the node said so"""
    # ours
    node_name: str = ""
    version: str = ""


class ModelBody(Shape):
    """`POST /api/nodes/{id}/models/unload` and `/delete`, `POST /api/models/unload`: LocalAI's key."""

    model_name: str = Field(min_length=1, max_length=255)
    reason: str = Field(default="", max_length=500)


class ModelStopBody(ModelBody):
    """`POST /api/nodes/{id}/models/stop`: one process, and the answer comes after its end."""

    replica_index: int = Field(default=0, ge=0, le=10_000)
    force: bool = False
    """without the seconds of grace"""


class ModelStopView(Message):
    process_key: str
    was_running: bool


class Unloading(WireEnum):
    """What became of a model on a node."""

    UNLOADED = auto()
    FAILED = auto()
    """it runs there, and was not freed"""
    AWAY = auto()
    """nobody is there to ask"""
    UNKNOWN = auto()
    """the node did not say what runs there"""


class UnloadedNode(Shape):
    """A node that has a model, or could have it."""

    node_id: str
    node_name: str
    result: Unloading
    replicas: int = 0
    """that were freed"""
    warning: str = ""


class UnloadView(Message):
    """`POST /api/models/unload`; nodes that do not have the model are left out."""

    model_name: str
    nodes: list[UnloadedNode]

    def named(self, *results: Unloading) -> list[str]:
        return [node.node_name for node in self.nodes if node.result in results]


class LogsPage(Shape):
    """What a backend has written: the tail, or what came after a cursor."""

    node_name: str
    key: str
    """which process wrote it"""
    lines: list[str]
    cursor: int
    """ask again with it for what comes next"""
    keys: list[str] = Field(default_factory=list)
    """every process of the node whose output is kept"""


class LogLine(Shape):
    """A line as LocalAI's clients read it."""

    timestamp: datetime | None = None
    """none: backends write straight into a file, and nobody notes when"""
    stream: str = "stdout"
    text: str
