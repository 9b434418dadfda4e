"""HTTP shapes of a node's running models and the output of its backends."""

from datetime import datetime
from enum import auto

from pydantic import Field

from nodesmith.contracts.http.shared import Message, Shape
from nodesmith.contracts.names import PlainName
from nodesmith.domain.wire_enum import WireEnum

MOST_LINES = 2000
LONGEST_WAIT_S = 25.0
"""how long a request for more output is held open; clients time out later"""


class NodeModel(Shape):
    """A running model as the node reports it; LocalAI's keys, and ours."""

    id: str
    node_id: str
    model_name: str
    replica_index: int = 0
    address: str = ""
    """as seen on the node: 127.0.0.1:<port>"""
    state: str = "loaded"
    """every reported model is loaded; models that are being stopped are omitted"""
    in_flight: int = 0
    """unknown: calls go to the backends directly"""
    last_used: datetime | None = None
    backend_type: str | None = None
    created_at: datetime
    updated_at: datetime
    """when the node reported it"""
    # our fields
    node_name: str = ""
    version: str = ""


class ModelBody(Shape):
    """`POST /api/nodes/{id}/models/unload` and `/delete`, `POST /api/v1/models/unload`: LocalAI's key."""

    model_name: PlainName = Field(min_length=1, max_length=255)
    reason: str = Field(default="", max_length=500)


class ModelStopBody(ModelBody):
    """`POST /api/nodes/{id}/models/stop`: one process; the response is sent after it has ended."""

    replica_index: int = Field(default=0, ge=0, le=10_000)
    force: bool = False
    """skip the grace period"""


class ModelStopView(Message):
    process_key: str
    was_running: bool


class UnloadResult(WireEnum):
    """What happened to a model on a node."""

    UNLOADED = auto()
    FAILED = auto()
    """it runs there and could not be unloaded"""
    AWAY = auto()
    """the node is unreachable"""
    UNKNOWN = auto()
    """the node did not report what runs there"""


class UnloadedNode(Shape):
    """A node that has the model, or may have it."""

    node_id: str
    node_name: str
    result: UnloadResult
    replicas: int = 0
    """the replicas that were unloaded"""
    warning: str = ""


class UnloadView(Message):
    """`POST /api/v1/models/unload`; nodes without the model are omitted."""

    model_name: str
    nodes: list[UnloadedNode]

    def named(self, *results: UnloadResult) -> list[str]:
        return [node.node_name for node in self.nodes if node.result in results]


class LogsPage(Shape):
    """Output of a backend: the tail, or what follows a cursor."""

    node_name: str
    key: str
    """the process that wrote it"""
    lines: list[str]
    cursor: int
    """for the next request"""
    keys: list[str] = Field(default_factory=list)
    """every process of the node whose output is kept"""


class LogLine(Shape):
    """A line in LocalAI's format."""

    timestamp: datetime | None = None
    """None: backends write directly into a file, without times"""
    stream: str = "stdout"
    text: str
