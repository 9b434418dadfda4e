"""HTTP shapes of deployments: models that the scheduler keeps loaded, their replicas, and calls of routers."""

from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from nodesmith.contracts.http.replicas import ReplicaView
from nodesmith.contracts.http.shared import Address, Shape, example, one_of_ours
from nodesmith.contracts.names import PlainName
from nodesmith.domain.deployment import (
    MOST_REPLICAS,
    LoadSpec,
    ModelFile,
    RoutePolicy,
    Rule,
    environment_of,
    parse_memory,
)
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.wire_enum import WireEnum

_MOST_BYTES = 2**60
_LONGEST = 4096


def _bytes(value: Any) -> Any:
    """Read "12GiB" as bytes."""
    if not isinstance(value, str):
        return value
    try:
        return parse_memory(value)
    except InvalidRequest as error:
        raise ValueError(error.message) from None


Bytes = Annotated[int, BeforeValidator(_bytes, json_schema_input_type=int | str), Field(ge=0, le=_MOST_BYTES)]
Policy = Annotated[RoutePolicy, AfterValidator(one_of_ours)]
Replicas = Annotated[int, Field(ge=0, le=MOST_REPLICAS)]


class FileShape(Shape):
    """One file of a model."""

    uri: Address = Field(max_length=_LONGEST)
    """where nodes fetch it"""
    sha256: str = Field(default="", max_length=64)
    """its digest, 64 hexadecimal digits; the node verifies it"""
    name: str = Field(default="", max_length=255)
    """under which the backend finds it; default: the last part of the uri"""
    size: int = Field(default=0, ge=0, le=_MOST_BYTES)
    """bytes, for the disk and the time limit; 0: unknown"""

    def file(self) -> ModelFile:
        name = self.name or PurePosixPath(urlsplit(self.uri).path).name
        return ModelFile(uri=self.uri, sha256=self.sha256.lower(), name=name, size=self.size)


class RuleShape(Shape):
    """How many replicas run, where, and how calls are spread."""

    selector: str = Field(default="", max_length=_LONGEST)
    """nodes that may run it, by labels; empty: all"""
    min_replicas: Replicas | None = None
    """replicas that always run; default: 1, with `spread_all` 0"""
    max_replicas: Replicas | None = None
    """0: as many as fit; default: 1 or `min_replicas`, with `spread_all` 0"""
    spread_all: bool = False
    """one replica on each matching node, instead of a number"""
    route_policy: Policy = RoutePolicy.INHERIT
    """how calls are spread: round_robin, prefix_cache, or empty for the router's default"""
    balance_abs_threshold: int = Field(default=0, ge=0, le=1_000_000)
    """prefix_cache: calls that a replica may have more than the least busy one; 0: default"""
    balance_rel_threshold: float = Field(default=0, ge=0, le=1_000_000)
    """prefix_cache: the same as a factor, at least 1; 0: default"""
    min_prefix_match: float = Field(default=0, ge=0, le=1)
    """kept for LocalAI's clients"""

    def rule(self) -> Rule:
        low = self.min_replicas if self.min_replicas is not None else int(not self.spread_all)
        high = self.max_replicas if self.max_replicas is not None else (0 if self.spread_all else max(low, 1))
        return Rule(
            selector=self.selector,
            min_replicas=low,
            max_replicas=high,
            spread_all=self.spread_all,
            policy=self.route_policy,
            balance_abs_threshold=self.balance_abs_threshold,
            balance_rel_threshold=self.balance_rel_threshold,
            min_prefix_match=self.min_prefix_match,
        )


class DeploymentRequest(RuleShape):
    """`PUT /api/v1/deployments/{name}`: the whole deployment; what is left out has its default."""

    model_config = example(
        backend="llama-cpp",
        files=[{"uri": "https://models.example.com/llama-3-8b.gguf", "sha256": "9f" * 32, "size": 4_920_000_000}],
        arguments=["--model", "{file}", "--ctx-size", "8192"],
        memory="6GiB",
        selector="gpu.vendor=nvidia",
        min_replicas=1,
        max_replicas=4,
    )

    backend: PlainName = Field(max_length=255)
    """the backend that serves it, as in the catalogue"""
    files: list[FileShape] = Field(default_factory=list, max_length=1000)
    """what the node downloads first"""
    arguments: list[str] = Field(default_factory=list, max_length=500)
    """arguments of the backend; {file} is the path of the first file, {file:NAME} of another"""
    environment: dict[str, str] = Field(default_factory=dict)
    """variables of the backend's process; answers show only their names"""
    memory: Bytes = 0
    """bytes, or a size such as 12GiB: GPU memory of one replica, on nodes without a GPU main memory; 0: unknown"""
    ready_path: str = Field(default="/health", max_length=_LONGEST)
    """a replica is ready when this path answers with 2xx"""
    ready_seconds: int = Field(default=0, ge=0)
    """how long it may take to get ready; 0: 5 minutes and 20 seconds per GiB of files, at most 6 hours"""
    expected_revision: int | None = Field(default=None, ge=0)
    """refuse unless this is the current revision; 0: unless the model is new"""
    force: bool = False
    """accept it although no registered node can run it now"""
    reason: str = Field(default="", max_length=500)
    """why, kept in the audit trail"""

    def spec(self, name: str) -> LoadSpec:
        return LoadSpec(
            model=name,
            revision=0,
            backend=self.backend,
            files=tuple(file.file() for file in self.files),
            arguments=tuple(self.arguments),
            environment=environment_of(self.environment),
            memory=self.memory,
            ready_path=self.ready_path,
            ready_seconds=self.ready_seconds,
        )


class ScaleBody(Shape):
    """`POST /api/v1/deployments/{name}/scale`."""

    model_config = example(min_replicas=2, max_replicas=6)

    min_replicas: Replicas
    """replicas that always run"""
    max_replicas: Replicas
    """0: as many as fit"""
    reason: str = Field(default="", max_length=500)
    """why, kept in the audit trail"""


class DeploymentStatus(WireEnum):
    """What people see first."""

    READY = "ready"
    """at least the minimum is loaded"""
    LOADING = "loading"
    """replicas are on their way"""
    IDLE = "idle"
    """nothing is loaded, and nobody asks for it"""
    UNSATISFIABLE = "unsatisfiable"
    """too few nodes can run it; `unsatisfiable_why` says what is missing"""
    WAITING = "waiting"
    """the scheduler has not placed it yet"""
    UNKNOWN = "unknown"


class DeploymentView(Shape):
    """A model that the scheduler keeps loaded."""

    name: str
    """name of the model"""
    revision: int
    """rises with each change of what is loaded"""
    status: DeploymentStatus
    """computed at the time of the request"""
    backend: str
    """the backend that serves it"""
    files: list[FileShape]
    """what the node downloads first"""
    arguments: list[str]
    """arguments of the backend"""
    environment: list[str]
    """names of the variables; the values are not shown"""
    memory: int
    """bytes that one replica reserves"""
    ready_path: str
    """a replica is ready when this path answers with 2xx"""
    ready_seconds: int
    """how long it may take to get ready; 0: by the size of its files"""
    selector: str
    """nodes that may run it"""
    min_replicas: int
    """replicas that always run"""
    max_replicas: int
    """0: as many as fit"""
    spread_all: bool
    """one replica on each matching node"""
    route_policy: RoutePolicy
    """how calls are spread"""
    balance_abs_threshold: int
    """see the request"""
    balance_rel_threshold: float
    """see the request"""
    min_prefix_match: float
    """see the request"""
    loaded: int
    """replicas that get calls: loaded, on nodes that answer"""
    starting: int
    """replicas that are placed or being loaded"""
    ending: int
    """replicas that are drained or unloaded"""
    in_flight: int
    """open calls of all replicas"""
    unsatisfiable_until: datetime | None = None
    """no placement is tried before this time, unless something changes"""
    unsatisfiable_why: str = ""
    """what is missing"""
    last_scaled_at: datetime | None = None
    """when the scheduler last added or gave up a replica"""
    created_at: datetime
    """when it was first deployed"""
    updated_at: datetime
    """when it was last changed"""


class DeploymentDetail(DeploymentView):
    replicas: list[ReplicaView]
    """its replicas"""


class FieldChange(Shape):
    """One field that a request would change."""

    field: str
    """name of the field"""
    before: Any = None
    """its value now; of variables only their names"""
    after: Any = None
    """its value afterwards"""


class DeploymentDiff(Shape):
    """What `PUT /api/v1/deployments/{name}` with the same body would change."""

    name: str
    """name of the model"""
    is_new: bool
    """there is no such deployment yet"""
    revision: int
    """revision afterwards"""
    changes: list[FieldChange]
    """empty: nothing would change"""


class NodeVerdict(Shape):
    """Whether a node could take the next replica."""

    node_id: str
    """id of the node"""
    node_name: str
    """name of the node"""
    verdict: str
    """`chosen`, or why not: no_match, memory, no_slot, disk, resting, not_healthy, not_preferred, ..."""
    detail: str
    """the same as a sentence"""


class PlacementView(Shape):
    """`GET /api/v1/deployments/{name}/explain`: where the next replica would go, and why nowhere else."""

    name: str
    """name of the model"""
    chosen: str | None
    """name of the node; null: no node fits"""
    nodes: list[NodeVerdict]
    """every node, the chosen one first"""
    actions: list[str]
    """what the scheduler would do now, as sentences"""
