"""Start a batch and record the request in the audit trail."""

from fastapi import Request

from nodesmith.api import auditing
from nodesmith.api.auth import require_uri_right
from nodesmith.api.dependencies import Dependencies
from nodesmith.api.views.shapes import fields_of, view_of
from nodesmith.contracts.http.batches import BatchAccepted, BatchRequest
from nodesmith.services.requested_work import RequestedBatch

MOST_NAMED = 20
"""nodes named in the audit row; the batch itself has all of them"""


async def start_batch(
    request: Request, deps: Dependencies, batch_request: BatchRequest, *, actor: str, idempotency_key: str | None = None
) -> BatchAccepted:
    require_uri_right(request, batch_request.uri)
    wanted = RequestedBatch(**fields_of(batch_request))
    accepted = await deps.batch_service.start(wanted, actor=actor, idempotency_key=idempotency_key)
    audited = batch_request.model_dump(mode="json", exclude_defaults=True, exclude={"reason"})
    if len(batch_request.nodes) > MOST_NAMED:
        audited["nodes"] = f"{len(batch_request.nodes)} nodes"
    after = {"kind": batch_request.kind, **audited, "batch_id": accepted.batch_id}
    auditing.record(request, target=accepted.batch_id, after=after)
    return view_of(BatchAccepted, accepted)
