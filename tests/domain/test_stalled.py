"""When an operation counts as stalled."""

from datetime import UTC, datetime, timedelta

import pytest

from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import STALLED_AFTER, Gauge, Operation, Phase, State

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("phase", "is_stalled"),
    [(Phase.DOWNLOADING, True), (Phase.STARTING, True), (Phase.LOADING, False), (None, True)],
)
def test_a_model_that_gets_ready_is_not_stalled(phase: Phase | None, is_stalled: bool) -> None:
    """It moves no bytes for minutes, and has a deadline of its own."""
    operation = Operation(
        op_id="op",
        kind=Kind.LOAD,
        node_id="n",
        node_name="n",
        backend="llama#0",
        family="server",
        state=State.RUNNING,
        gauge=Gauge(phase=phase, at=NOON),
        created_at=NOON,
        changed_at=NOON,
        read_at=NOON + STALLED_AFTER + timedelta(seconds=1),
    )
    assert operation.stalled is is_stalled
