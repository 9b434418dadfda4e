from datetime import UTC, datetime

import pytest
from pydantic import ValidationError
from temporalio.contrib.pydantic import pydantic_data_converter

from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.contracts.temporal.batches import BatchOrder
from nodesmith.contracts.temporal.operations import (
    CONTROL_QUEUE,
    LONGEST_SIGNAL_TEXT,
    SEARCH_ATTRIBUTES,
    CancelRequest,
    Intent,
    OperationInput,
    OperationRequest,
    Payload,
    Projection,
    RunState,
    node_queue,
    operation_workflow_id,
)
from nodesmith.domain.identity import family_of
from nodesmith.domain.operation import Reason, State

LONGEST_ON_POSTGRES = 255
NODE_ID = "0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"

REQUEST = OperationRequest(
    op_id="op",
    node_id=NODE_ID,
    node_name="n1",
    wanted=Intent(backend="echo", family="echo"),
    created_at=datetime(2026, 11, 16, tzinfo=UTC),
)
PAYLOADS = [
    OperationInput(request=REQUEST, carried=RunState(state=State.WAITING, seq=3, reason=Reason.NODE_AWAY)),
    CancelRequest(op_id="op", by="admin", why=Reason.NODE_DRAINED),
    Projection(
        request=REQUEST,
        workflow_id="w",
        at=REQUEST.created_at,
        seq=1,
        state=State.SUCCEEDED,
        outcome=Outcome(op_id="op", result=Result.SUCCEEDED),
    ),
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: type(payload).__name__)
async def test_a_payload_is_the_same_after_temporal(payload: Payload) -> None:
    encoded = await pydantic_data_converter.encode([payload])
    assert await pydantic_data_converter.decode(encoded, [type(payload)]) == [payload]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: type(payload).__name__)
def test_fields_of_a_newer_version_are_ignored(payload: Payload) -> None:
    newer = {**payload.model_dump(mode="json"), "from_tomorrow": 1}
    assert type(payload).model_validate(newer) == payload


def test_the_lock_is_node_and_family() -> None:
    """S5, superseded: one function makes the key, and nobody parses it."""
    assert operation_workflow_id("n1", "echo") == "backend:n1:echo"


def test_the_longest_lock_fits_where_temporal_stores_it() -> None:
    assert len(operation_workflow_id(NODE_ID, family_of("x" * 1000))) <= LONGEST_ON_POSTGRES


def test_installs_and_cancels_do_not_share_a_queue() -> None:
    assert node_queue() == "nodesmith-node"
    assert node_queue(CONTROL_QUEUE) != CONTROL_QUEUE


def test_search_attributes_are_ours_alone_and_within_temporals_limit() -> None:
    names = [key.name for key in SEARCH_ATTRIBUTES]
    assert len(set(names)) == len(names) <= 10
    assert all(name.startswith("Nodesmith") for name in names)


def test_an_order_cannot_be_changed_on_the_way() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        REQUEST.node_id = "other"  # type: ignore[misc]


def test_texts_of_signals_are_cut() -> None:
    """Otherwise the owner of Temporal puts megabytes into a row and into every list."""
    long = "x" * 1_000_000
    cancel, order = CancelRequest(op_id="1", by=long, detail=long), BatchOrder(by=long, reason=long)
    assert {len(text) for text in (cancel.by, cancel.detail, order.by, order.reason)} == {LONGEST_SIGNAL_TEXT}
    assert CancelRequest(op_id="1", by="ada", detail="why").by == "ada"
