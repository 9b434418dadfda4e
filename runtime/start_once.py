"""Starts a workflow run exactly once, even if the start is repeated or delayed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from temporalio.api.common import v1 as wire
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import Priority, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.converter import encode_search_attributes
from temporalio.service import RPCError, RPCStatusCode

from nodesmith.contracts.temporal.operations import Payload
from nodesmith.domain.errors import AlreadyRunning


@dataclass(frozen=True)
class Start:
    """The parameters of a new run."""

    workflow: str
    argument: Payload
    workflow_id: str
    request_id: str
    """Starts with the same request id refer to the same run, open or closed: a suspended process that resumes after
    the run has ended starts nothing. The SDK generates a new id for each start, hence this module."""
    queue: str
    search_attributes: TypedSearchAttributes
    summary: str
    priority: Priority
    details: str = ""
    memo: Mapping[str, str] = field(default_factory=dict)
    reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE


async def start(client: Client, asked: Start) -> str:
    """Start the run and return its id; raise `AlreadyRunning` when another run holds the workflow id."""
    try:
        answer = await client.workflow_service.start_workflow_execution(await _request(client, asked), retry=True)
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:
            raise AlreadyRunning(_holder(error)) from None
        raise
    return answer.run_id


async def _request(client: Client, asked: Start) -> StartWorkflowExecutionRequest:
    words = [asked.summary, asked.details, *asked.memo.values()]
    argument, summary, details, *memo = await client.data_converter.encode([asked.argument, *words])
    request = StartWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=asked.workflow_id,
        request_id=asked.request_id,
        identity=client.identity,
        workflow_id_reuse_policy=cast("WorkflowIdReusePolicy.ValueType", asked.reuse.value),
        workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        user_metadata=UserMetadata(summary=summary, details=details),
        priority=_priority(asked.priority),
        # a process that also runs a worker of that queue receives the first task with the response
        request_eager_execution=True,
    )
    request.workflow_type.name = asked.workflow
    request.task_queue.name = asked.queue
    request.input.payloads.append(argument)
    for name, value in zip(asked.memo, memo, strict=True):
        request.memo.fields[name].CopyFrom(value)
    encode_search_attributes(asked.search_attributes, request.search_attributes)
    return request


def _priority(wanted: Priority) -> wire.Priority:
    return wire.Priority(priority_key=wanted.priority_key or 0, fairness_key=wanted.fairness_key or "")


def _holder(error: RPCError) -> str:
    """Return the run that holds the workflow id; empty if Temporal does not name it."""
    taken = WorkflowExecutionAlreadyStartedFailure()
    details = error.grpc_status.details
    return taken.run_id if details and details[0].Unpack(taken) else ""
