"""Operations in LocalAI's words: the job status, and the entry of the live list."""

from typing import Any

from contracts.batches import ENDED_BATCHES, BatchState, BatchView
from contracts.http import JobStatus, OperationView
from contracts.words import LOCALAI_OUTCOMES, LOCALAI_TASK_TYPES
from domain.operation import ENDED, OPEN, Kind, State

_BAD = (State.FAILED, State.EXPIRED, State.DEAD_LETTER, "conflict", "refused", "not_started")
_UNSETTLED = {*OPEN, "waiting_for_turn"}
_ON_THE_NODE = {State.RUNNING, State.STILL_INSTALLING}
_NODE_STATUS = {
    State.QUEUED: "queued",
    State.WAITING: "queued",
    State.RUNNING: "downloading",
    State.STILL_INSTALLING: "running_on_worker",
    State.CANCELLING: "running_on_worker",
    State.SUCCEEDED: "success",
}


def job_status(operation: OperationView | None) -> JobStatus:
    """What LocalAI's picker polls; an id that nobody knows reads as queued."""
    if operation is None:
        return JobStatus()
    outcome = LOCALAI_OUTCOMES.get(operation.state)
    return JobStatus(
        progress=operation.progress.percentage,
        message="completed" if operation.state is State.SUCCEEDED else operation.message,
        galleryElementName=operation.backend,
        processed=operation.state in ENDED,
        deletion=operation.kind is Kind.REMOVE,
        queued=False,
        error=operation.message if outcome == "failed" else None,
        completed=True if operation.state is State.SUCCEEDED else None,
    )


def batch_job_status(batch: BatchView | None) -> JobStatus:
    """A batch as one job: done when every node has its result."""
    if batch is None:
        return JobStatus()
    ended, failed = batch.state in ENDED_BATCHES, sum(batch.counts.get(state, 0) for state in _BAD)
    members = sum(batch.counts.values())
    settled = sum(number for standing, number in batch.counts.items() if standing not in _UNSETTLED)
    clean = ended and not failed and batch.state is BatchState.COMPLETED
    return JobStatus(
        progress=100 if clean else round(99.0 * settled / max(members, 1), 1),
        message="completed" if clean else batch.message,
        galleryElementName=batch.backend,
        processed=ended,
        deletion=batch.kind is Kind.REMOVE,
        queued=False,
        error=f"{failed} of {members} nodes failed" if ended and failed else None,
        completed=True if clean else None,
    )


def list_entry(operation: OperationView) -> dict[str, Any]:
    """One object for both readers: ours, then LocalAI's names; `progress` is LocalAI's, ours is in `gauge`."""
    ours = operation.model_dump(mode="json")
    return {**ours, "gauge": ours["progress"], **_theirs(operation)}


def list_order(operation: OperationView) -> tuple[int, str, str]:
    """LocalAI's order: least progress first, then by name."""
    return int(operation.progress.percentage), operation.backend, operation.op_id


def _theirs(operation: OperationView) -> dict[str, Any]:
    is_removal = operation.kind is Kind.REMOVE
    waits = operation.state in (State.QUEUED, State.WAITING)
    always = {
        "id": operation.backend,
        "name": operation.backend,
        "fullName": operation.backend,
        "jobID": operation.op_id,
        "progress": int(operation.progress.percentage),
        "taskType": "Waiting" if waits else LOCALAI_TASK_TYPES.get(operation.kind, "Installation"),
        "isDeletion": is_removal,
        "isBackend": True,
        "isQueued": waits,
        "cancellable": operation.state not in ENDED and not (is_removal and operation.state in _ON_THE_NODE),
        "message": operation.message,
        "nodeID": operation.node_id,
        "nodes": [_node(operation)],
    }
    return {**always, **_when_set(operation)}


def _when_set(operation: OperationView) -> dict[str, Any]:
    """Fields that LocalAI leaves out when they say nothing."""
    gauge = operation.progress
    return {
        name: value
        for name, value in {
            "phase": gauge.phase,
            "currentBytes": gauge.bytes_done,
            "totalBytes": gauge.bytes_total,
            "error": operation.message if LOCALAI_OUTCOMES.get(operation.state) == "failed" else "",
        }.items()
        if value
    }


def _node(operation: OperationView) -> dict[str, Any]:
    failed = LOCALAI_OUTCOMES.get(operation.state) == "failed"
    node = {
        "node_id": operation.node_id,
        "node_name": operation.node_name,
        "status": _NODE_STATUS.get(operation.state, "error"),
        "percentage": operation.progress.percentage,
    }
    if operation.progress.phase:
        node["phase"] = operation.progress.phase
    return {**node, "error": operation.message} if failed else node
