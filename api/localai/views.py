"""Operations in LocalAI's format: what was accepted, the job status, and the entry of the live list."""

from starlette.datastructures import URL

from nodesmith.contracts.http.batches import BatchAccepted, BatchDetail, BatchView, MemberView
from nodesmith.contracts.http.localai import (
    FleetJob,
    JobReference,
    JobStatus,
    LocalaiHistoryEntry,
    LocalaiOperation,
    NodeJob,
    NodeProgress,
    OpStatus,
)
from nodesmith.contracts.http.operations import OperationAccepted, OperationView
from nodesmith.contracts.words import LOCALAI_OUTCOMES
from nodesmith.domain.batch import ENDED_BATCHES, BatchState
from nodesmith.domain.operation import ENDED, ON_NODE, OPEN, State

_BAD = (State.FAILED, State.EXPIRED, State.DEAD_LETTER, "conflict", "refused", "not_started")
_UNSETTLED = {*OPEN, "waiting_for_turn"}
_NODE_STATUS = {
    State.QUEUED: "queued",
    State.WAITING: "queued",
    State.RUNNING: "downloading",
    State.STILL_INSTALLING: "running_on_worker",
    State.CANCELLING: "running_on_worker",
    State.SUCCEEDED: "success",
}


def node_job(accepted: OperationAccepted) -> NodeJob:
    return NodeJob(jobID=accepted.op_id, statusUrl=_status_url(accepted.op_id), message=accepted.message)


def fleet_job(accepted: BatchAccepted, message: str) -> FleetJob:
    """A batch as one job of `/api/backends`."""
    batch_id = accepted.batch_id
    return FleetJob(jobID=batch_id, uuid=batch_id, statusUrl=_status_url(batch_id), message=message)


def job_reference(accepted: BatchAccepted, base_url: URL) -> JobReference:
    """A batch as one job of `/backends`, with a complete address as LocalAI gives it."""
    batch_id = accepted.batch_id
    return JobReference(id=batch_id, uuid=batch_id, status_url=f"{base_url}backends/jobs/{batch_id}")


def _status_url(job_id: str) -> str:
    return f"/api/backends/job/{job_id}"


def job_status(operation: OperationView) -> JobStatus:
    """The status that LocalAI's picker polls."""
    return JobStatus(
        progress=operation.progress.percentage,
        message="completed" if operation.state is State.SUCCEEDED else operation.message,
        galleryElementName=operation.backend,
        processed=operation.state in ENDED,
        deletion=operation.kind.rules.removes,
        queued=False,
        error=_error(operation),
        completed=True if operation.state is State.SUCCEEDED else None,
    )


def batch_job_status(batch: BatchView) -> JobStatus:
    """A batch as one job: processed when every node has its result."""
    ended, failed = batch.state in ENDED_BATCHES, _failed(batch)
    members, clean = sum(batch.counts.values()), batch_succeeded(batch)
    return JobStatus(
        progress=_batch_progress(batch),
        message="completed" if clean else batch.message,
        galleryElementName=batch.backend,
        processed=ended,
        deletion=batch.kind.rules.removes,
        queued=False,
        error=f"{failed} of {members} nodes failed" if ended and failed else None,
        completed=True if clean else None,
    )


def batch_succeeded(batch: BatchView) -> bool:
    return batch.state is BatchState.COMPLETED and not _failed(batch)


def _failed(batch: BatchView) -> int:
    return sum(batch.counts.get(state, 0) for state in _BAD)


def _batch_progress(batch: BatchView) -> float:
    """100 only if nothing is left to do and nothing failed."""
    settled = sum(number for standing, number in batch.counts.items() if standing not in _UNSETTLED)
    return 100 if batch_succeeded(batch) else round(99.0 * settled / max(sum(batch.counts.values()), 1), 1)


def op_status(operation: OperationView) -> OpStatus:
    """One operation as LocalAI's OpStatus."""
    gauge = operation.progress
    return OpStatus(
        deletion=operation.kind.rules.removes,
        error=_error(operation),
        processed=operation.state in ENDED,
        message="completed" if operation.state is State.SUCCEEDED else operation.message,
        progress=gauge.percentage,
        phase="queued" if operation.state is State.QUEUED else gauge.phase,
        current_bytes=gauge.bytes_done or None,
        total_bytes=gauge.bytes_total or None,
        gallery_element_name=operation.backend,
        cancelled=operation.state is State.CANCELLED,
        cancellable=_cancellable(operation),
        nodes=[_node(operation)],
    )


def batch_op_status(batch: BatchDetail) -> OpStatus:
    """A batch as one operation on many nodes; its error lists only hard failures, each with the node's name."""
    ended = batch.state in ENDED_BATCHES
    bad = "; ".join(f"{each.node_name}: {each.detail or each.state}" for each in batch.members if each.state in _BAD)
    return OpStatus(
        deletion=batch.kind.rules.removes,
        error=bad or None if ended else None,
        processed=ended,
        message="completed" if batch_succeeded(batch) else batch.message,
        progress=_batch_progress(batch),
        gallery_element_name=batch.backend,
        cancelled=batch.state is BatchState.CANCELLED,
        cancellable=not ended,
        nodes=[_member(each) for each in batch.members],
    )


def _member(member: MemberView) -> NodeProgress:
    standing = State(member.state) if member.state in set(State) else None
    quiet = {"waiting_for_turn": "queued", "nothing_to_do": "success", "skipped": "success"}
    return NodeProgress(
        node_id=member.node_id,
        node_name=member.node_name,
        status=_NODE_STATUS.get(standing, "error") if standing else quiet.get(member.state, "error"),
        percentage=member.percentage,
        error=(member.detail or member.state) if member.state in _BAD else None,
    )


def history_entry(operation: OperationView) -> LocalaiHistoryEntry:
    outcome = LOCALAI_OUTCOMES[operation.state]
    return LocalaiHistoryEntry(
        id=operation.backend,
        name=operation.backend,
        jobID=operation.op_id,
        nodeID=operation.node_id,
        taskType="deletion" if operation.kind.rules.removes else "installation",
        outcome=outcome,
        error=operation.message if outcome == "failed" else None,
        startedAt=operation.created_at,
        finishedAt=operation.ended_at,
    )


def list_entry(operation: OperationView) -> LocalaiOperation:
    gauge, waits = operation.progress, operation.state in (State.QUEUED, State.WAITING)
    return LocalaiOperation(
        id=operation.backend,
        name=operation.backend,
        fullName=operation.backend,
        jobID=operation.op_id,
        progress=int(gauge.percentage),
        taskType="Waiting" if waits else "deletion" if operation.kind.rules.removes else "Installation",
        isDeletion=operation.kind.rules.removes,
        isQueued=waits,
        cancellable=_cancellable(operation),
        message=operation.message,
        nodeID=operation.node_id,
        phase=gauge.phase,
        currentBytes=gauge.bytes_done or None,
        totalBytes=gauge.bytes_total or None,
        error=_error(operation),
        nodes=[_node(operation)],
    )


def list_order(operation: OperationView) -> tuple[int, str, str]:
    """LocalAI's sort order: least progress first, then by name."""
    return int(operation.progress.percentage), operation.backend, operation.op_id


def _cancellable(operation: OperationView) -> bool:
    """Only where a cancel can take effect: a removal that has reached its node is completed."""
    is_past_it = operation.state in ON_NODE and not operation.kind.rules.cancellable_on_node
    return operation.state not in ENDED and not is_past_it


def _error(operation: OperationView) -> str | None:
    return operation.message if LOCALAI_OUTCOMES.get(operation.state) == "failed" else None


def _node(operation: OperationView) -> NodeProgress:
    return NodeProgress(
        node_id=operation.node_id,
        node_name=operation.node_name,
        status=_NODE_STATUS.get(operation.state, "error"),
        percentage=operation.progress.percentage,
        phase=operation.progress.phase,
        error=_error(operation),
    )
