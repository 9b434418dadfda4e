"""A batch is ordered: started, and written down with all that was asked."""

from fastapi import Request

from api import auditing
from api.parts import Parts
from contracts.batches import BatchAccepted, BatchRequest

MOST_NAMED = 20
"""nodes; the batch itself knows all of them"""


async def start_batch(
    request: Request, parts: Parts, asked: BatchRequest, *, actor: str, idempotency_key: str | None = None
) -> BatchAccepted:
    accepted = await parts.desk.start(asked, actor=actor, idempotency_key=idempotency_key)
    said = asked.model_dump(mode="json", exclude_defaults=True, exclude={"reason"})
    if len(asked.nodes) > MOST_NAMED:
        said["nodes"] = f"{len(asked.nodes)} nodes"
    after = {"kind": asked.kind, **said, "batch_id": accepted.batch_id}
    auditing.tell(request, target=accepted.batch_id, after=after)
    return accepted
