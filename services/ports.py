"""What the use cases need from the outside: Protocols, met by `store`, `bus`, `gallery` and `runtime`."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Protocol

from contracts.http import NodeView, OperationView, RegisterRequest
from contracts.messages import (
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    OpReply,
    Outcome,
    Progress,
)
from contracts.temporal import CancelRequest, OperationInput, Projection, Run
from domain.artifact import Artifact
from domain.node import NatsCredential


class NodeRegistry(Protocol):
    """The table of nodes."""

    async def find(self, id_or_name: str) -> NodeView | None: ...
    async def credential_hash(self, node_id: str) -> str | None: ...
    async def machine_id(self, node_id: str) -> str: ...
    async def upsert(
        self, request: RegisterRequest, *, now: datetime, credential_hash: str | None, approve: bool
    ) -> NodeView: ...
    async def approve(self, node_id: str, *, now: datetime) -> bool: ...


class Operations(Protocol):
    """The projection of the operations."""

    async def find(self, op_id: str) -> OperationView | None: ...
    async def insert_queued(self, first: Projection) -> bool: ...
    async def record(self, transition: Projection) -> bool: ...
    async def open_operations(self) -> Sequence[OperationView]: ...
    async def waiting_for(self, node_ids: Sequence[str]) -> Sequence[OperationView]: ...


class OperationRuns(Protocol):
    """Temporal, as the use cases see it. Every call is bounded; `ServiceUnavailable` when it does not answer.

    `start` raises `AlreadyRunning`; `cancel` is False when no such run is open.
    """

    async def start(self, request: OperationInput, *, intent: str) -> str: ...
    async def describe(self, workflow_id: str, run_id: str | None = None) -> Run | None: ...
    async def cancel(self, workflow_id: str, request: CancelRequest) -> bool: ...
    async def node_back(self, workflow_id: str, node_id: str) -> None: ...
    async def report_outcome(self, workflow_id: str, outcome: Outcome) -> None: ...
    async def open_runs(self) -> Sequence[Run]: ...


class Catalogue(Protocol):
    def resolve(self, backend: str, version: str = "") -> Artifact | None: ...


class CredentialIssuer(Protocol):
    def node_credential(self, node_id: str, *, protocol: int, lifetime: timedelta) -> NatsCredential: ...


class Reports(Protocol):
    """What a node says of one operation while we are attached."""

    async def next(self, within: float) -> Progress | Outcome | None: ...


class NodeLink(Protocol):
    """Commands to one node. `NodeAway` and `NoAnswer` are the two ways not to be answered."""

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply: ...
    async def cancel(self, node_id: str, command: CancelCommand, *, within: float) -> CancelReply: ...
    async def ask(self, node_id: str, op_id: str, *, within: float) -> OpReply: ...
    async def list_backends(self, node_id: str, *, within: float) -> BackendList: ...
    def attach(self, node_id: str, op_id: str) -> AbstractAsyncContextManager[Reports]: ...
