"""The Temporal client of a process, and operations as workflow runs. Every call is bounded in time."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import (
    Priority,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.service import GrpcCompression, RPCError, RPCStatusCode, TLSConfig

from nodesmith.contracts.temporal import batches
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.batches import BatchInput, BatchOrder
from nodesmith.contracts.temporal.locks import workflow_id_of
from nodesmith.contracts.temporal.operations import (
    CancelRequest,
    Intent,
    NodeBack,
    OperationInput,
    OperationResult,
    OutcomeReport,
    Payload,
    PhaseReport,
    RowEndNotice,
    Run,
    SlotGranted,
)
from nodesmith.domain.addresses import without_query
from nodesmith.domain.errors import AlreadyRunning
from nodesmith.domain.operation import Phase, State
from nodesmith.runtime import start_once
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.start_once import Start
from nodesmith.runtime.temporal_calls import Calls, is_unprepared

LIST_LIMIT_S = 60.0
"""time limit to list all open runs"""
INTERACTIVE = 2
BATCHED = 4


async def connect(settings: ControlSettings, *, lazy: bool = False) -> Client:
    """Connect with our data converter; `lazy` for a process that must start even while Temporal is down."""
    return await Client.connect(
        settings.temporal_address,
        namespace=settings.temporal_namespace,
        data_converter=pydantic_data_converter,
        grpc_compression=GrpcCompression.NONE,
        tls=_tls(settings),
        lazy=lazy,
    )


def _tls(settings: ControlSettings) -> TLSConfig | bool:
    """Return CA and client certificate; without either setting the connection is not encrypted."""
    if settings.temporal_ca_file is None and settings.temporal_cert_file is None:
        return False
    return TLSConfig(
        server_root_ca_cert=_content(settings.temporal_ca_file),
        client_cert=_content(settings.temporal_cert_file),
        client_private_key=_content(settings.temporal_key_file),
    )


def _content(file: Path | None) -> bytes | None:
    return file.read_bytes() if file else None


async def prepare_namespace(client: Client) -> None:
    """Register the search attributes at every start, because Temporal ignores its flag on an existing database."""
    attributes = {key.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD for key in names.SEARCH_ATTRIBUTES}
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=attributes)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


def run_url(ui_url: str, namespace: str, workflow_id: str, run_id: str) -> str:
    """Return the address of that run in the Temporal Web UI."""
    runs = f"{ui_url}/namespaces/{namespace}/workflows/{quote(workflow_id, safe='')}"
    return f"{runs}/{run_id}/history" if run_id else runs


class TemporalRuns:
    """Operations as Temporal runs; implements `nodesmith.services.ports.OperationRuns`."""

    def __init__(self, client: Client, *, queue: str = names.CONTROL_QUEUE) -> None:
        self._client = client
        self.queue = queue
        self._calls = Calls(client)
        self._lists = Calls(client, longest_s=LIST_LIMIT_S)

    async def start(self, request: OperationInput, *, intent: str) -> str:
        """Start the run once per op_id and return its id; raise `AlreadyRunning` when another run has the lock."""
        asked = request.request.model_copy(update={"wanted": shown(request.request.wanted)})
        request = request.model_copy(update={"request": asked})
        start = Start(
            workflow=names.BACKEND_OPERATION,
            argument=request,
            workflow_id=workflow_id_of(asked),
            request_id=asked.op_id,
            queue=names.node_queue(self.queue),
            search_attributes=_search_attributes(request),
            summary=f"{_title(asked.wanted)} on {asked.node_name}",
            details=_details(request),
            memo={names.MEMO_OP_ID: asked.op_id, names.MEMO_INTENT: intent},
            priority=_priority(asked.batch_id),
        )
        async with self._calls.writing():
            return await start_once.start(self._client, start)

    async def describe(self, workflow_id: str, run_id: str | None = None) -> Run | None:
        """Return that run, or the latest one without `run_id`; None if Temporal does not know it."""
        async with self._calls.reading():
            return await describe_run(self._client, workflow_id, run_id)

    async def result(self, workflow_id: str, run_id: str) -> OperationResult | None:
        """Return the result of a closed run, also of a failed one; None if it was terminated, deleted or reset."""
        handle = self._client.get_workflow_handle(workflow_id, run_id=run_id or None, result_type=OperationResult)
        try:
            async with self._calls.reading():
                result: OperationResult = await handle.result()
        except WorkflowFailureError as error:
            return _result_of_failure(error)
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):  # no such run, or no run id
                return None
            raise
        return result

    async def cancel(self, workflow_id: str, request: CancelRequest) -> bool:
        return await self._signal(workflow_id, names.SIGNAL_CANCEL, request)

    async def node_back(self, workflow_id: str, node_id: str) -> None:
        await self._signal(workflow_id, names.SIGNAL_NODE_BACK, NodeBack(node_id=node_id))

    async def report_outcome(self, workflow_id: str, op_id: str) -> None:
        await self._signal(workflow_id, names.SIGNAL_OUTCOME, OutcomeReport(op_id=op_id))

    async def report_row_end(self, workflow_id: str, op_id: str) -> None:
        await self._signal(workflow_id, names.SIGNAL_ROW_ENDED, RowEndNotice(op_id=op_id))

    async def report_phase(self, workflow_id: str, op_id: str, phase: Phase) -> None:
        await self._signal(workflow_id, names.SIGNAL_PHASE, PhaseReport(op_id=op_id, phase=phase))

    async def start_batch(self, batch: BatchInput) -> str:
        """Start the batch, or return the run that already has this batch id."""
        builds = {name: shown(build) for name, build in batch.builds.items()}
        batch = batch.model_copy(update={"wanted": shown(batch.wanted), "builds": builds})
        start = Start(
            workflow=batches.BATCH,
            argument=batch,
            workflow_id=batches.batch_workflow_id(batch.batch_id),
            request_id=batch.batch_id,
            queue=self.queue,
            search_attributes=TypedSearchAttributes(
                [
                    SearchAttributePair(names.BATCH, batch.batch_id),
                    SearchAttributePair(names.BACKEND, batch.wanted.family),
                    SearchAttributePair(names.KIND, batch.wanted.kind),
                ]
            ),
            summary=f"{_title(batch.wanted)} on {len(batch.targets)} nodes",
            priority=_priority(batch.batch_id),
            reuse=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        )
        try:
            async with self._calls.writing():
                return await start_once.start(self._client, start)
        except AlreadyRunning as known:
            return known.run_id

    async def batch_input(self, batch_id: str) -> BatchInput | None:
        """Return the input that the batch run was started with; None if Temporal does not know the run."""
        handle = self._client.get_workflow_handle(batches.batch_workflow_id(batch_id))
        try:
            async with self._calls.reading():
                first = await anext(handle.fetch_history_events(page_size=1))
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        payloads = first.workflow_execution_started_event_attributes.input.payloads
        batch: BatchInput = (await self._client.data_converter.decode(payloads, [BatchInput]))[0]
        return batch.model_copy(update={"carried": None})

    async def open_batches(self) -> set[str]:
        """Return the ids of open batches. Visibility lags: describe a run before treating it as missing."""
        ours = f"WorkflowType = '{batches.BATCH}' AND TaskQueue = '{self.queue}'"
        query = f"{ours} AND ExecutionStatus = 'Running'"
        async with self._lists.reading():
            found = [execution.id async for execution in self._client.list_workflows(query)]
        return {workflow_id.removeprefix(batches.batch_workflow_id("")) for workflow_id in found}

    async def grant_slot(self, workflow_id: str, op_id: str) -> None:
        await self._signal(workflow_id, names.SIGNAL_TURN, SlotGranted(op_id=op_id))

    async def order_batch(self, batch_id: str, signal: str, order: BatchOrder) -> bool:
        """Pause, resume or cancel; False if that batch has ended."""
        return await self._signal(batches.batch_workflow_id(batch_id), signal, order)

    async def open_runs(self) -> Sequence[Run]:
        """Return all open operation runs. Visibility lags: describe a run before treating it as missing."""
        ours = f"WorkflowType = '{names.BACKEND_OPERATION}' AND TaskQueue = '{names.node_queue(self.queue)}'"
        query = f"{ours} AND ExecutionStatus = 'Running'"
        async with self._lists.reading():
            return [await _run(execution) async for execution in self._client.list_workflows(query)]

    async def ping(self) -> None:
        """Raise `ServiceUnavailable` when Temporal does not answer."""
        await self._calls.ping()

    async def _signal(self, workflow_id: str, name: str, payload: Payload) -> bool:
        try:
            async with self._calls.writing():
                await self._client.get_workflow_handle(workflow_id).signal(name, payload)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True


async def describe_run(client: Client, workflow_id: str, run_id: str | None = None) -> Run | None:
    """Return the run as Temporal describes it; None if Temporal does not know it."""
    try:
        return await _run(await client.get_workflow_handle(workflow_id, run_id=run_id).describe())
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and not is_unprepared(error):
            return None
        raise


async def _run(execution: WorkflowExecution) -> Run:
    memo = await execution.memo()
    return Run(
        workflow_id=execution.id,
        run_id=execution.run_id,
        is_open=execution.status is WorkflowExecutionStatus.RUNNING,
        op_id=memo.get(names.MEMO_OP_ID, ""),
        intent=memo.get(names.MEMO_INTENT, ""),
    )


def _result_of_failure(error: WorkflowFailureError) -> OperationResult | None:
    """Return the result that a run attached to its own failure."""
    details = error.cause.details if isinstance(error.cause, ApplicationError) else ()
    try:
        return OperationResult.model_validate(details[0]) if details else None
    except ValueError:
        return None


def shown(wanted: Intent) -> Intent:
    """Return the intent without the queries of its addresses: they may be secrets, and Temporal shows its histories.

    Nodes and retries use the signed order, which has the addresses as given.
    """
    mirrors = tuple(map(without_query, wanted.mirrors))
    return wanted.model_copy(update={"uri": without_query(wanted.uri), "mirrors": mirrors})


def _title(wanted: Intent) -> str:
    return f"{wanted.kind.capitalize()} {wanted.backend} {wanted.version}".rstrip()


def _search_attributes(request: OperationInput) -> TypedSearchAttributes:
    asked = request.request
    pairs = [
        SearchAttributePair(names.NODE, asked.node_name),
        SearchAttributePair(names.BACKEND, asked.wanted.family or asked.wanted.backend),
        SearchAttributePair(names.KIND, asked.wanted.kind),
        SearchAttributePair(names.STATE, State.QUEUED),
    ]
    if asked.batch_id:
        pairs.append(SearchAttributePair(names.BATCH, asked.batch_id))
    return TypedSearchAttributes(pairs)


def _details(request: OperationInput) -> str:
    asked = request.request
    lines = [f"operation `{asked.op_id}`", f"node `{asked.node_name}` ({asked.node_id})"]
    if asked.wanted.uri:
        lines.append(f"from {asked.wanted.uri}")
    if asked.requested_by:
        lines.append(f"asked for by {asked.requested_by}" + (f": {asked.note}" if asked.note else ""))
    return "\n\n".join(lines)


def _priority(batch_id: str | None) -> Priority:
    """Prefer a user's request to a batch; batches share capacity fairly."""
    if batch_id is None:
        return Priority(priority_key=INTERACTIVE)
    return Priority(priority_key=BATCHED, fairness_key=batch_id[:64])
