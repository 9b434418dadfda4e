"""Member rows that a batch writes again after PostgreSQL was restored to an older copy."""

from collections.abc import Container, Iterable, Mapping

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from nodesmith.contracts.temporal.batches import BatchInput, BatchMember, MemberVerdict, Target, member_op_id

LOST = "not known: PostgreSQL was restored to an older copy"


def joined_members(open_ops: Mapping[str, Target], joined: Container[str]) -> Iterable[BatchMember]:
    """Return the open members that other requests started."""
    return [
        BatchMember(node_id=each.node_id, node_name=each.node_name, op_id=op_id, joined=True)
        for op_id, each in open_ops.items()
        if op_id in joined
    ]


def lost_members(batch: BatchInput, left_nodes: Container[str]) -> Iterable[BatchMember]:
    """Return members that had ended or got a verdict; their rows are lost unless their own runs wrote them."""
    return [
        BatchMember(
            node_id=each.node_id,
            node_name=each.node_name,
            op_id=member_op_id(batch.batch_id, each.node_id),
            verdict=MemberVerdict.UNKNOWN,
            detail=LOST,
        )
        for each in batch.targets
        if each.node_id not in left_nodes
    ]
