"""Refuses a batch whose run could not hand its state to the next one: Temporal limits the size of a payload."""

from nodesmith.contracts.temporal.batches import BatchCarried, BatchInput, member_op_id
from nodesmith.contracts.temporal.operations import operation_workflow_id
from nodesmith.domain.errors import InvalidRequest

LARGEST_PAYLOAD = 2 * 1024 * 1024
"""Temporal's limit, `limit.blobSize.error`; the run fails beyond it"""
_SPARE = 64 * 1024
"""for what is added later: the reason and the author of a cancel"""


def refuse_too_large(batch: BatchInput) -> None:
    size = largest_size(batch)
    limit = LARGEST_PAYLOAD - _SPARE
    if size > limit:
        most = max(1, len(batch.targets) * limit // size)
        raise InvalidRequest(
            f"A batch of {len(batch.targets)} nodes is too large. Divide it into batches of at most {most} nodes, "
            "for example by a selector.",
            field="nodes",
        )


def largest_size(batch: BatchInput) -> int:
    """Return the size of the state if every node was away, is back, waits for a slot and has failed before."""
    members = {member_op_id(batch.batch_id, each.node_id): each for each in batch.targets}
    runs = {op_id: operation_workflow_id(each.node_id, batch.wanted.family) for op_id, each in members.items()}
    attempts = dict.fromkeys(members, batch.policy.max_attempts) if batch.count_attempts else {}
    carried = BatchCarried(waiting=(), open_ops=members, ready=runs, away=tuple(members), attempts=attempts)
    return len(batch.model_copy(update={"carried": carried}).model_dump_json().encode())
