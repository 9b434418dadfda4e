"""HTTP shapes of replicas: what runs where, how far a load is, and calls of routers."""

from datetime import datetime

from pydantic import Field

from nodesmith.contracts.http.shared import Shape, example
from nodesmith.contracts.names import PlainName
from nodesmith.domain.replica import ReplicaState


class ReplicaView(Shape):
    """One replica of a model."""

    id: str
    """id of the replica"""
    node_id: str
    """id of its node"""
    node_name: str = ""
    """name of its node"""
    model: str
    """name of the model"""
    index: int
    """number of this replica on its node"""
    revision: int
    """of the deployment that it runs"""
    state: ReplicaState
    """placing, loading, loaded, draining or unloading; only a loaded one gets calls"""
    address: str = ""
    """where its node accepts calls"""
    op_id: str
    """the operation that loads or unloads it"""
    reserved: int = 0
    """bytes of the node's memory"""
    in_flight: int = 0
    """open calls"""
    loaded_at: datetime | None = None
    """when it got ready"""
    last_used: datetime | None = None
    """when a call last began or ended"""
    created_at: datetime
    """when its node was chosen"""
    changed_at: datetime
    """when its state last changed"""
    is_reachable: bool = True
    """false: its node does not answer, so it gets no calls and does not count"""


class PlannedMove(Shape):
    model: str
    """name of the model"""
    index: int
    """number of the replica"""
    to: str | None
    """name of the node that would take it; null: none, so it keeps serving"""
    detail: str
    """why"""


class DrainPreview(Shape):
    """`GET /api/v1/nodes/{node}/drain-preview`: which replicas would move, and where to."""

    moves: list[PlannedMove]
    """one for each replica of the node"""


class LoadStatus(Shape):
    """A model that is being loaded; LocalAI's keys."""

    model: str
    """name of the model"""
    state: str
    """pending, installing, staging or loading"""
    node: str
    """name of the node"""
    progress: float
    """percent"""
    bytes_sent: int = 0
    """bytes of the files that are on the node"""
    total_bytes: int = 0
    """bytes of all files"""
    file_index: int = 0
    """number of the current file"""
    total_files: int = 0
    """number of files"""
    eta_seconds: float | None = None
    """remaining time, if it is known"""


class AcquireBody(Shape):
    """`POST /api/v1/deployments/{name}/acquire`: choose a replica for one call and count the call."""

    model_config = example(holder="router-1")

    holder: PlainName = Field(min_length=1, max_length=255)
    """who holds the call: one name per process of the router"""
    prefer: str = Field(default="", max_length=64)
    """id of the replica to choose if it can be"""


class ReleaseBody(Shape):
    """`POST /api/v1/deployments/{name}/release`: the call has ended."""

    model_config = example(holder="router-1", replica_id="0192f0c1-4a5b-7c3d-8e9f-0a1b2c3d4e5f")

    holder: PlainName = Field(min_length=1, max_length=255)
    """who held the call"""
    replica_id: str = Field(min_length=1, max_length=64)
    """the replica of the call"""


class Released(Shape):
    released: bool
    """false: this holder had no call there; nothing was changed"""


class ModelNotice(Shape):
    """On the event stream: a deployment, its replicas or the nodes below them changed; read it again."""

    model: str
    """name of the model; empty: any of them"""


class HolderView(Shape):
    holder: str
    """name of the holder"""
    known: bool
    """false: it was silent for too long, and its calls no longer count"""
