"""NATS messages about the replicas of models: what a node loads, and what it reports about them."""

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, ValidationError

from nodesmith.contracts.nats.readings import Caption, Decision, Identifier
from nodesmith.contracts.nats.wire import Message
from nodesmith.domain.deployment import LoadSpec, ModelFile
from nodesmith.domain.replica import ReplicaState, ReportedReplica

MOST_REPLICAS = 2000
"""replicas in one report of a node"""


class FileOrder(Message):
    """One file of a model; the node accepts no other content than that of the digest."""

    uri: str
    sha256: str
    name: str
    size: int = 0


class LoadOrder(Message):
    """Everything that a node needs to load one replica. Values of the environment may be secrets."""

    model: str
    revision: int = 0
    backend: str = ""
    files: list[FileOrder] = Field(default_factory=list)
    arguments: list[str] = Field(default_factory=list)
    environment: dict[str, str] = Field(default_factory=dict, repr=False)
    memory: int = 0
    ready_path: str = "/health"
    ready_seconds: int = 0

    @classmethod
    def of(cls, spec: LoadSpec) -> Self:
        files = [FileOrder(uri=each.uri, sha256=each.sha256, name=each.name, size=each.size) for each in spec.files]
        return cls(
            model=spec.model,
            revision=spec.revision,
            backend=spec.backend,
            files=files,
            arguments=list(spec.arguments),
            environment=dict(spec.environment),
            memory=spec.memory,
            ready_path=spec.ready_path,
            ready_seconds=spec.ready_seconds,
        )

    @property
    def spec(self) -> LoadSpec:
        return LoadSpec(
            model=self.model,
            revision=self.revision,
            backend=self.backend,
            files=tuple(ModelFile(**each.model_dump()) for each in self.files),
            arguments=tuple(self.arguments),
            environment=tuple(sorted(self.environment.items())),
            memory=self.memory,
            ready_path=self.ready_path,
            ready_seconds=self.ready_seconds,
        )


class ReplicaReport(Message):
    """A replica on a node, as its agent sees it."""

    model: Identifier
    index: Decision = 0
    revision: Decision = 0
    address: Caption = ""
    """as seen on the node: 127.0.0.1:<port>"""
    state: ReplicaState = ReplicaState.UNKNOWN
    op_id: Identifier = ""
    """the load that started it"""

    def reported(self) -> ReportedReplica:
        return ReportedReplica(
            model=self.model, index=self.index, revision=self.revision, address=self.address, op_id=self.op_id
        )


def _readable_reports(sent: object) -> object:
    """A list without the entries that cannot be read; anything else is no report."""
    if not isinstance(sent, list):
        return None
    return [found for each in sent[:MOST_REPLICAS] if (found := _report_of(each)) is not None]


def _report_of(sent: object) -> ReplicaReport | None:
    try:
        return ReplicaReport.model_validate(sent)
    except ValidationError:
        return None


ReplicaReports = Annotated[list[ReplicaReport] | None, BeforeValidator(_readable_reports)]
"""None: the node reports no replicas"""
