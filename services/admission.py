"""Admission: from a request to a durable operation, the same way for a person, a batch or a script."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from urllib.parse import urlsplit

import structlog

from contracts.http import InstallRequest, JobAccepted, NodeView
from contracts.temporal import (
    OperationInput,
    OperationRequest,
    Policy,
    Projection,
    Run,
    Wanted,
    operation_workflow_id,
)
from domain.errors import (
    AlreadyRunning,
    InvalidRequest,
    NodeDrained,
    NodeNotApproved,
    NodeNotForBackends,
    NodesmithError,
    OperationConflict,
    ServiceUnavailable,
    UnknownBackend,
    UnknownNode,
)
from domain.identity import derived_op_id, family_of, intent_digest, new_op_id
from domain.node import NodeStatus, NodeType
from domain.operation import State
from services.ports import Catalogue, NodeRegistry, OperationRuns, Operations

log = structlog.get_logger()

START_TRIES = 3


class IdempotencyKeys(Protocol):
    """Which operation an `Idempotency-Key` led to."""

    async def find(self, actor: str, key: str) -> tuple[str, str] | None: ...
    async def remember(self, actor: str, key: str, intent: str, op_id: str) -> None: ...


@dataclass(frozen=True)
class Admission:
    """The one door to a node's disk."""

    nodes: NodeRegistry
    operations: Operations
    runs: OperationRuns
    catalogue: Catalogue
    keys: IdempotencyKeys
    policy: Policy
    uri_schemes: frozenset[str]
    clock: Callable[[], datetime]

    async def install(
        self, node: str, request: InstallRequest, *, actor: str, idempotency_key: str | None = None
    ) -> JobAccepted:
        """Admit an install on one node; returns as soon as the workflow has started."""
        target = admissible(await self.nodes.find(node), node)
        wanted = self._wanted(request)
        intent = _intent(wanted)
        if idempotency_key and (known := await self.keys.find(actor, idempotency_key)):
            return self._repeat(known, intent)
        admitted = OperationInput(
            request=OperationRequest(
                op_id=derived_op_id(actor, idempotency_key) if idempotency_key else new_op_id(),
                node_id=target.id,
                node_name=target.name,
                protocol=target.protocol,
                wanted=wanted,
                requested_by=actor,
                note=request.reason,
                created_at=self.clock(),
            ),
            policy=_policy_for(request, self.policy),
        )
        op_id, joined = await self._start_or_join(admitted, intent)
        if idempotency_key:
            await self._after_start(self.keys.remember(actor, idempotency_key, intent, op_id))
        return _accepted(op_id, joined=joined)

    def _wanted(self, request: InstallRequest) -> Wanted:
        if not request.backend and not request.uri:
            raise InvalidRequest("backend name or uri required", field="backend")
        return self._by_uri(request) if request.uri else self._by_name(request)

    def _by_name(self, request: InstallRequest) -> Wanted:
        artifact = self.catalogue.resolve(request.backend, request.version)
        if artifact is None:
            asked = f"{request.backend} {request.version}".rstrip()
            raise UnknownBackend(f"No gallery has the backend {asked}.", backend=request.backend)
        return Wanted(
            backend=artifact.name,
            family=family_of(artifact.name, alias=request.alias),
            version=artifact.version,
            uri=artifact.uri,
            sha256=artifact.sha256 or _bare_digest(request.sha256),
            size=artifact.size,
            alias=request.alias,
            force=request.force,
        )

    def _by_uri(self, request: InstallRequest) -> Wanted:
        _check_uri(request.uri, self.uri_schemes)
        family = family_of(request.name or request.backend, alias=request.alias, uri=request.uri)
        if not family:
            raise InvalidRequest("The uri has no file name to call the backend by; send name.", field="name")
        return Wanted(
            backend=request.name or request.backend or family,
            family=family,
            version=request.version,
            uri=request.uri,
            sha256=_bare_digest(request.sha256),
            name=request.name,
            alias=request.alias,
            force=request.force,
        )

    async def _start_or_join(self, admitted: OperationInput, intent: str) -> tuple[str, bool]:
        """The workflow id is the lock: start, or find out who holds it and what it wants."""
        for _ in range(START_TRIES):
            try:
                run_id = await self.runs.start(admitted, intent=intent)
            except AlreadyRunning as taken:
                workflow_id = operation_workflow_id(admitted.request.node_id, admitted.request.wanted.family)
                holder = await self.runs.describe(workflow_id, taken.run_id or None)
                if holder is None or not holder.is_open:
                    continue
                if holder.intent == intent:
                    return holder.op_id, True
                raise _conflict(holder, admitted.request) from None
            else:
                await self._after_start(self.operations.insert_queued(_first_row(admitted, run_id)))
                return admitted.request.op_id, False
        raise ServiceUnavailable("The backend is locked by operations that come and go; ask again.")

    async def _after_start(self, writing: Awaitable[object]) -> None:
        """The workflow has started, so the answer is 202 whatever happens to our row: the workflow writes it too."""
        try:
            await writing
        except NodesmithError as error:
            log.warning("row not written at admission; the workflow will write it", error=str(error))

    def _repeat(self, known: tuple[str, str], intent: str) -> JobAccepted:
        before, op_id = known
        if before != intent:
            raise OperationConflict(
                f"This Idempotency-Key was used for another request (operation {op_id}).", op_id=op_id
            )
        return _accepted(op_id, joined=True)


def admissible(node: NodeView | None, asked: str) -> NodeView:
    """The node, if operations may be asked of it at all; being away is no obstacle."""
    if node is None:
        raise UnknownNode(f"There is no node {asked}.", node=asked)
    if node.node_type is not NodeType.BACKEND:
        raise NodeNotForBackends(f"Node {node.name} is of type {node.node_type} and runs no backends.", node=node.name)
    if node.status is NodeStatus.PENDING:
        raise NodeNotApproved(f"Node {node.name} waits for approval.", node=node.name)
    if node.drained_at is not None:
        raise NodeDrained(f"Node {node.name} is drained.", node=node.name)
    return node


def _check_uri(uri: str, schemes: frozenset[str]) -> None:
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise InvalidRequest("The uri is malformed.", field="uri") from None
    if parts.scheme not in schemes:
        allowed = ", ".join(sorted(schemes))
        raise InvalidRequest(f"The uri's scheme is not allowed; use one of {allowed}.", field="uri")
    if parts.scheme != "file" and not parts.hostname:
        raise InvalidRequest("The uri names no host.", field="uri")
    if parts.username or parts.password:
        raise InvalidRequest("The uri carries a password; it would be written to history and logs.", field="uri")


def _bare_digest(sha256: str) -> str:
    return sha256.lower().removeprefix("sha256:")


def _intent(wanted: Wanted) -> str:
    return intent_digest(kind=wanted.kind, version=wanted.version, uri=wanted.uri, force=wanted.force)


def _policy_for(request: InstallRequest, policy: Policy) -> Policy:
    asked = {"wait_for_node": request.wait_for_node_s, "deadline": request.deadline_s}
    return policy.model_copy(update={name: timedelta(seconds=s) for name, s in asked.items() if s is not None})


def _first_row(admitted: OperationInput, run_id: str) -> Projection:
    """The row as the API writes it: older than anything the workflow can write, whatever the clocks say."""
    request = admitted.request
    return Projection(
        request=request,
        workflow_id=operation_workflow_id(request.node_id, request.wanted.family),
        run_id=run_id,
        at=datetime.fromtimestamp(0, UTC),
        seq=0,
        state=State.QUEUED,
    )


def _conflict(holder: Run, asked: OperationRequest) -> OperationConflict:
    return OperationConflict(
        f"Operation {holder.op_id} holds {asked.wanted.family} on node {asked.node_name} and wants something else.",
        op_id=holder.op_id,
        node=asked.node_name,
        backend=asked.wanted.family,
    )


def _accepted(op_id: str, *, joined: bool) -> JobAccepted:
    return JobAccepted(
        jobID=op_id,
        statusUrl=f"/api/backends/job/{op_id}",
        message="backend installation started" if not joined else "this backend installation is running already",
        joined=joined,
        operation=f"/api/operations/{op_id}",
    )
