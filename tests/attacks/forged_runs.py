"""Attacks with full access to Temporal on a run that is held: signals by a batch, updates and queries."""

import asyncio
import uuid
from contextlib import suppress

from temporalio.api.batch.v1 import BatchOperationSignal
from temporalio.api.common.v1 import Payloads
from temporalio.api.workflowservice.v1 import StartBatchOperationRequest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError

from nodesmith.contracts.temporal import operations as names
from nodesmith.runtime.temporal import connect
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System
from tests.e2e.slow_source import package

VICTIM = "agent-2"
SIGNALS = (names.SIGNAL_NODE_BACK, names.SIGNAL_TURN, names.SIGNAL_OUTCOME, names.SIGNAL_ROW_ENDED, names.SIGNAL_PHASE)
_SECONDS = 20


async def _signal_by_batch(client: Client, workflow_id: str, signal: str, content: dict[str, str]) -> None:
    """Signal all runs of a query, as `Batch actions` of the Web UI and `temporal workflow signal --query` do."""
    payloads = await client.data_converter.encode([content])
    await client.workflow_service.start_batch_operation(
        StartBatchOperationRequest(
            namespace=client.namespace,
            visibility_query=f"WorkflowId = '{workflow_id}' AND ExecutionStatus = 'Running'",
            job_id=str(uuid.uuid4()),
            reason="attack",
            signal_operation=BatchOperationSignal(signal=signal, input=Payloads(payloads=payloads), identity="attack"),
        )
    )


async def _received(run: WorkflowHandle[object, object], wanted: set[str]) -> None:
    """Wait until the history has the signals, and that of the batch too; otherwise nothing was tried."""
    async with asyncio.timeout(60):
        while True:
            events = (await run.fetch_history()).events
            got = [each.workflow_execution_signaled_event_attributes for each in events]
            if wanted <= {each.signal_name for each in got} and any(each.identity == "attack" for each in got):
                return
            await asyncio.sleep(0.5)


async def forged_signals_updates_and_queries(system: System) -> str:
    """A person holds the fleet; whoever owns Temporal tells the run that its turn came and that its node is done."""
    (archive := system.scratch / f"{uuid.uuid4().hex}.tar.gz").write_bytes((built := package(1000)).content)
    family, http = f"held-{uuid.uuid4().hex[:8]}", system.fleet.http
    client = await connect(system.machine.temporal_settings())
    (await http.put("/api/v1/hold", json={"reason": "attack"})).raise_for_status()
    try:
        op_id = await system.fleet.accepted(VICTIM, uri=archive.as_uri(), sha256=built.sha256, name=family)
        workflow_id = names.operation_workflow_id(str(system.identity(VICTIM)["node_id"]), family)
        run = client.get_workflow_handle(workflow_id)
        forged = {"op_id": op_id, "node_id": "x", "phase": "starting", "result": "succeeded", "state": "succeeded"}
        await _signal_by_batch(
            client, workflow_id, names.SIGNAL_OUTCOME, forged
        )  # the server admits one batch at a time
        for signal in SIGNALS:
            await run.signal(signal, forged)
        await _received(run, set(SIGNALS))
        for update in ("outcome", "record", "succeed"):
            with suppress(WorkflowUpdateFailedError, RPCError, TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    await run.execute_update(update, forged)
                raise AttackSucceeded(f"the run took the update {update}")
        await run.query(names.QUERY_STATUS)
        await asyncio.sleep(3)
        found = await system.fleet.operation(op_id)
    finally:
        (await http.delete("/api/v1/hold")).raise_for_status()
    if found["state"] != "waiting" or (system.folder / "agents" / VICTIM / "backends" / family).exists():
        raise AttackSucceeded(f"the held operation is {found['state']}: {found}")
    ended = await system.fleet.ended(op_id)
    if ended["state"] != "succeeded":
        raise AttackSucceeded(f"after the release it ended as {ended['state']}")
    return "signals only wake the run, which reads its row and asks the node; it has no updates; the hold is in the row"


ATTACKS = (
    Attack(
        "Temporal tells a held run that its node is done",
        Severity.HIGH,
        forged_signals_updates_and_queries,
        seconds=240,
    ),
)
