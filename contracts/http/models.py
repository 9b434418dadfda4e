"""HTTP shapes of a node's running models and the output of its backends."""

from datetime import datetime
from enum import auto

from pydantic import Field

from nodesmith.contracts.http.shared import Message, Shape, example
from nodesmith.contracts.names import PlainName
from nodesmith.domain.wire_enum import WireEnum

MOST_LINES = 2000
LONGEST_WAIT_S = 25.0
"""how long a request for more output is held open; clients time out later"""


class NodeModel(Shape):
    """A running model as the node reports it; LocalAI's keys, and ours."""

    id: str
    """node, model and replica in one"""
    node_id: str
    """id of the node"""
    model_name: str
    """name of the model"""
    replica_index: int = 0
    """number of the replica"""
    address: str = ""
    """as seen on the node: 127.0.0.1:<port>"""
    state: str = "loaded"
    """loaded; draining if it gets no more calls. Models that are being stopped are omitted"""
    in_flight: int = 0
    """open calls, as gateways and routers count them; 0 for a process without a deployment"""
    last_used: datetime | None = None
    """when a call last began or ended; null for a process without a deployment"""
    backend_type: str | None = None
    """name of the backend that runs it"""
    created_at: datetime
    """when the node reported it"""
    updated_at: datetime
    """when the node reported it"""
    # our fields
    node_name: str = ""
    """name of the node"""
    version: str = ""
    """version of the backend"""


class ModelBody(Shape):
    """Which model; LocalAI's key."""

    model_config = example(model_name="llama")

    model_name: PlainName = Field(min_length=1, max_length=255)
    """name of the model"""
    reason: str = Field(default="", max_length=500)
    """why, kept in the audit trail"""


class ModelStopBody(ModelBody):
    """`POST /api/v1/nodes/{id}/models/stop`: one process; the response is sent after it has ended."""

    model_config = example(model_name="llama", replica_index=1)

    replica_index: int = Field(default=0, ge=0, le=10_000)
    """number of the replica"""
    force: bool = False
    """skip the grace period"""


class ModelStopView(Message):
    process_key: str
    """the process: `name#replica`"""
    was_running: bool
    """false: there was nothing to stop"""


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
    """id of the node"""
    node_name: str
    """name of the node"""
    result: UnloadResult
    """what happened there"""
    replicas: int = 0
    """the replicas that were unloaded"""
    warning: str = ""
    """why it failed, or is not known"""


class UnloadView(Message):
    """`POST /api/v1/models/unload`; nodes without the model are omitted."""

    model_name: str
    """name of the model"""
    nodes: list[UnloadedNode]
    """nodes that have the model, or may have it"""

    def named(self, *results: UnloadResult) -> list[str]:
        return [node.node_name for node in self.nodes if node.result in results]


class LogsPage(Shape):
    """Output of a backend: the tail, or what follows a cursor."""

    node_name: str
    """name of the node"""
    key: str
    """the process that wrote it"""
    lines: list[str]
    """lines, the oldest first"""
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
