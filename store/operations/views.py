"""Converts rows into the views of the HTTP contract, with messages for people."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from nodesmith.contracts import words
from nodesmith.contracts.http.nodes import NodeView
from nodesmith.contracts.http.operations import OperationEvent, OperationView, ProgressView
from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.temporal.operations import OperationRequest
from nodesmith.domain.budget import parse as parse_budget
from nodesmith.domain.operation import Kind, Phase, Reason, State
from nodesmith.store.tables.core import NodeRow, OperationEventRow, OperationRow

STALLED_AFTER = timedelta(seconds=60)
NO_WORKER_AFTER = timedelta(seconds=30)
_COLUMNS = tuple(NodeRow.__table__.columns.keys())


def node_view(row: NodeRow, status: str, open_operations: int, labels: dict[str, str] | None) -> NodeView:
    derived = {"status": status, "open_operations": open_operations, "labels": labels}
    return NodeView.model_validate(node_facts({name: getattr(row, name) for name in _COLUMNS} | derived))


def node_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a node view; internal columns have no field there.

    The row stores the reported VRAM; the view shows what the budget leaves.
    """
    override, resources = row["vram_budget_override"], row["resources"]
    budget = row["vram_budget"] if override is None else override
    limit, total_vram = parse_budget(budget), resources.get("total_vram")
    return {
        **resources,
        "available_vram": limit.available(total_vram, resources.get("available_vram")),
        **row,
        "max_replicas_per_model": row["max_replicas_override"] or row["max_replicas_per_model"],
        "max_replicas_per_model_manually_set": row["max_replicas_override"] is not None,
        "vram_budget": budget,
        "vram_budget_bytes": limit.ceiling(total_vram),
        "vram_budget_manually_set": override is not None,
        "labels": row["labels"] or {},
    }


def operation_view(row: OperationRow, now: datetime) -> OperationView:
    request = OperationRequest.model_validate(row.request)
    state = State(row.state)
    reason = _reason(row.reason)
    message = _describe(row, now)
    return OperationView(
        op_id=row.op_id,
        kind=Kind(row.kind),
        node_id=row.node_id,
        node_name=row.node_name,
        backend=row.backend,
        family=row.family,
        version=request.wanted.version,
        uri=request.wanted.uri,
        sha256=request.wanted.sha256,
        force=request.wanted.force,
        verified=request.wanted.verified,
        state=state,
        reason=reason,
        detail=row.detail,
        until=row.until,
        attempt=row.attempt,
        progress=progress_view(row, now),
        stalled=_is_stalled(row, now),
        before=_installed(row.before),
        after=_installed(row.after),
        changed=row.changed,
        bytes_fetched=row.bytes_fetched,
        bytes_reused=row.bytes_reused,
        requested_by=request.requested_by,
        note=request.note,
        cancelled_by=row.cancelled_by,
        batch_id=row.batch_id,
        retry_of=request.retry_of,
        created_at=row.created_at,
        dispatched_at=row.dispatched_at,
        ended_at=row.ended_at,
        dismissed_at=row.dismissed_at,
        workflow_id=row.workflow_id,
        run_id=row.run_id,
        message=message.sentence,
        remedy=message.remedy,
    )


def event_view(row: OperationEventRow) -> OperationEvent:
    state, reason = State(row.state), _reason(row.reason)
    return OperationEvent(
        id=row.id,
        op_id=row.op_id,
        node_id=row.node_id,
        node_name=row.node_name,
        backend=row.backend,
        kind=Kind(row.kind),
        batch_id=row.batch_id,
        state=state,
        reason=reason,
        detail=row.detail,
        until=row.until,
        attempt=row.attempt,
        at=row.at,
        message=words.tell(state, reason, row.detail, until=row.until),
    )


def progress_view(row: OperationRow, now: datetime) -> ProgressView:
    """The last gauge, reduced to what applies in the operation's state; a stalled one has no rate."""
    stalled = _is_stalled(row, now)
    gauge = ProgressView(
        phase=_phase(row.phase),
        bytes_done=row.bytes_done,
        bytes_total=row.bytes_total,
        percentage=row.percentage,
        rate=0.0 if stalled else row.rate,
        eta_s=None if stalled else row.eta_s,
        at=row.progressed_at,
    )
    return gauge.during(State(row.state))


def _describe(row: OperationRow, now: datetime) -> words.Words:
    """Message and remedy of the operation's current state."""
    state, reason = State(row.state), _reason(row.reason)
    if _has_no_worker(row, now):
        return words.NO_WORKER
    sentence = words.tell(state, reason, row.detail, _phase(row.phase), until=row.until)
    return words.Words(sentence, words.remedy(state, reason))


def _has_no_worker(row: OperationRow, now: datetime) -> bool:
    """Whether only the API has written the row so far, and no node works on it."""
    overdue = now - row.created_at > NO_WORKER_AFTER
    return row.state == State.QUEUED and overdue and row.progressed_at is None


def _is_stalled(row: OperationRow, now: datetime) -> bool:
    moved = max(row.at, row.progressed_at or row.at)
    return row.state == State.RUNNING and now - moved > STALLED_AFTER


def _reason(word: str | None) -> Reason | None:
    return Reason(word) if word else None


def _phase(word: str | None) -> Phase | None:
    phase = Phase(word) if word else None
    return None if phase is Phase.UNKNOWN else phase


def _installed(stored: dict[str, object] | None) -> Installed | None:
    return Installed.model_validate(stored) if stored else None
