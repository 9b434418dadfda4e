"""Queries of addresses may be secrets (presigned addresses): only signed orders contain them, no Temporal history."""

from typing import Any

import pytest
from temporalio.client import Client

from nodesmith.contracts.temporal.batches import batch_workflow_id, member_op_id
from nodesmith.contracts.temporal.operations import OperationRequest, Projection, operation_workflow_id
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason, State
from nodesmith.runtime.temporal import shown
from nodesmith.services.batches.batches import BatchService
from nodesmith.services.operations.admission import Admission
from nodesmith.services.requested_work import RequestedBackend, RequestedBatch
from nodesmith.store.operations.operations import OperationTable
from tests.services.conftest import Join, now
from tests.services.test_batch_retry import service

__all__ = ["service"]

URI = "https://files.example.com/echo.tar.gz?X-Signature=SECRET"
FROM_URI: dict[str, Any] = {"uri": URI, "name": "echo-by-uri", "sha256": "0" * 64}


async def history(client: Client, workflow_id: str) -> bytes:
    """All events as bytes; as JSON the payloads would be base64."""
    events = (await client.get_workflow_handle(workflow_id).fetch_history()).events
    return b"".join(event.SerializeToString() for event in events)


async def fail(operations: OperationTable, request: OperationRequest) -> None:
    """The run writes its end with the request that it was started with."""
    started = request.model_copy(update={"wanted": shown(request.wanted)})
    ended = {"state": State.FAILED, "reason": Reason.NO_DISK, "ended_at": now()}
    await operations.record(Projection(request=started, workflow_id="w", at=now(), seq=1, **ended))


async def uri_of(admission: Admission, op_id: str) -> str:
    order = await admission.orders.read(op_id)
    assert order is not None
    return order.uri


async def test_query_of_an_operation_is_in_its_order_and_not_in_temporal(
    admission: Admission, client: Client, operations: OperationTable, join: Join
) -> None:
    node = await join()
    asked = await admission.ask(Kind.INSTALL, node.id, RequestedBackend(**FROM_URI), actor="ada")
    workflow_id = operation_workflow_id(node.id, "echo-by-uri")
    assert b"SECRET" not in await history(client, workflow_id)
    assert await uri_of(admission, asked.op_id) == URI
    request = await operations.request(asked.op_id)
    assert request is not None
    await fail(operations, request)
    await client.get_workflow_handle(workflow_id).terminate()
    again = await admission.retry(asked.op_id, actor="ada")
    assert await uri_of(admission, again.op_id) == URI, "a retry uses the order"


@pytest.mark.parametrize("key", [None, "a-key"])
async def test_query_of_a_batch_is_in_its_orders_and_not_in_temporal(
    admission: Admission, service: BatchService, client: Client, operations: OperationTable, join: Join, key: str | None
) -> None:
    """With a key, the API reads the started batch back from Temporal."""
    node = await join()
    asked = RequestedBatch(**FROM_URI, kind=Kind.INSTALL, nodes=[node.name])
    actor = node.name
    batch = await service.start(asked, actor=actor, idempotency_key=key)
    assert b"SECRET" not in await history(client, batch_workflow_id(batch.batch_id))
    member = member_op_id(batch.batch_id, node.id)
    assert await uri_of(admission, member) == URI
    order = await admission.orders.read(member)
    stored = await service.batches.request(batch.batch_id)
    assert order is not None
    assert stored is not None
    request = OperationRequest(
        op_id=member,
        node_id=node.id,
        node_name=node.name,
        batch_id=batch.batch_id,
        wanted=stored.wanted,
        created_at=now(),
    )
    await fail(operations, request)
    again = await service.retry(batch.batch_id, actor=actor)
    assert await uri_of(admission, member_op_id(again.batch_id, node.id)) == URI, "a retry uses the orders"
