"""A batch is refused if its run could exceed Temporal's limits later."""

from datetime import UTC, datetime

import pytest

from nodesmith.contracts.temporal.batches import BatchInput, Target
from nodesmith.contracts.temporal.operations import Intent
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.identity import new_op_id
from nodesmith.services.batches.payload_size import LARGEST_PAYLOAD, largest_size, refuse_too_large
from nodesmith.workflows.batch import Batch


def batch_of(nodes: int, *, name: str = "node") -> BatchInput:
    targets = (Target(node_id=new_op_id(), node_name=f"{name}-{number}") for number in range(nodes))
    wanted = Intent(backend="echo", family="echo")
    return BatchInput(batch_id=new_op_id(), wanted=wanted, targets=tuple(targets), created_at=datetime.now(UTC))


def test_batch_that_could_not_continue_as_new_is_refused_and_the_possible_size_named() -> None:
    with pytest.raises(InvalidRequest, match=r"10000 nodes is too large.* at most 5\d\d\d nodes"):
        refuse_too_large(batch_of(10_000))
    with pytest.raises(InvalidRequest, match="2500 nodes is too large"):
        refuse_too_large(batch_of(2500, name="n" * 250))


def test_state_of_an_admitted_batch_fits_into_one_payload_whatever_happens() -> None:
    """Every member is open, was away, and is back: the largest state that a run hands over."""
    batch = batch_of(4000)
    refuse_too_large(batch)
    run = Batch(batch)
    members = {each.node_id: each for each in batch.targets}
    run._waiting = []
    run._open = {new_op_id(): each for each in members.values()}
    run._ready = {op_id: run._workflow_id_of(each) for op_id, each in run._open.items()}
    run._away = frozenset(run._open)
    size = len(batch.model_copy(update={"carried": run._carried()}).model_dump_json())
    assert size <= largest_size(batch) + 100
    assert size < LARGEST_PAYLOAD
