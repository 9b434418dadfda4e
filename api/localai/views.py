"""Operations in LocalAI's format: the job status, and the entry of the live list."""

from collections.abc import Mapping, Sequence
from typing import Any

from nodesmith.contracts.http.batches import BatchDetail, BatchView, MemberView
from nodesmith.contracts.http.galleries import CatalogueEntry, CataloguePage
from nodesmith.contracts.http.localai import JobStatus, OpStatus
from nodesmith.contracts.http.operations import OperationView
from nodesmith.contracts.words import LOCALAI_OUTCOMES
from nodesmith.domain.batch import ENDED_BATCHES, BatchState
from nodesmith.domain.identity import family_of
from nodesmith.domain.operation import ENDED, ON_NODE, OPEN, Operation, State

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


def job_status(operation: OperationView) -> JobStatus:
    """The status that LocalAI's picker polls."""
    outcome = LOCALAI_OUTCOMES.get(operation.state)
    return JobStatus(
        progress=operation.progress.percentage,
        message="completed" if operation.state is State.SUCCEEDED else operation.message,
        galleryElementName=operation.backend,
        processed=operation.state in ENDED,
        deletion=operation.kind.rules.removes,
        queued=False,
        error=operation.message if outcome == "failed" else None,
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
    gauge, outcome = operation.progress, LOCALAI_OUTCOMES.get(operation.state)
    return OpStatus(
        deletion=operation.kind.rules.removes,
        error=operation.message if outcome == "failed" else None,
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


def _member(member: MemberView) -> dict[str, Any]:
    standing = State(member.state) if member.state in set(State) else None
    quiet = {"waiting_for_turn": "queued", "nothing_to_do": "success", "skipped": "success"}
    node = {
        "node_id": member.node_id,
        "node_name": member.node_name,
        "status": _NODE_STATUS.get(standing, "error") if standing else quiet.get(member.state, "error"),
        "percentage": member.percentage,
    }
    return {**node, "error": member.detail or member.state} if member.state in _BAD else node


def with_open_operations(page: CataloguePage, open_operations: Sequence[Operation]) -> CataloguePage:
    """Mark the catalogue entries that have an open operation on any node."""
    open_by_name: dict[str, list[Operation]] = {}
    for operation in open_operations:
        open_by_name.setdefault(family_of(operation.backend), []).append(operation)
    busy = {entry.id: found for entry in page.backends if (found := _oldest_operation(entry, open_by_name))}
    jobs = {key: found.batch_id or found.op_id for key, found in busy.items()}
    in_work = [_marked_busy(entry, _oldest_operation(entry, open_by_name)) for entry in page.backends]
    kinds = {key: _task_of(found) for key, found in busy.items()}
    return page.model_copy(update={"backends": in_work, "processingBackends": jobs, "taskTypes": kinds})


def _oldest_operation(entry: CatalogueEntry, open_by_name: Mapping[str, Sequence[Operation]]) -> Operation | None:
    """Return the oldest open operation; one that names a version counts for that version only."""
    found = open_by_name.get(family_of(entry.name), ())
    return next((each for each in found if not each.version or each.version == entry.version), None)


def _marked_busy(entry: CatalogueEntry, operation: Operation | None) -> CatalogueEntry:
    if operation is None:
        return entry
    is_removal = operation.kind.rules.removes
    return entry.model_copy(
        update={"processing": True, "jobID": operation.batch_id or operation.op_id, "isDeletion": is_removal}
    )


def _task_of(operation: Operation) -> str:
    if operation.state in (State.QUEUED, State.WAITING):
        return "Waiting"
    return "Deletion" if operation.kind.rules.removes else "Installation"


def history_entry(operation: OperationView) -> dict[str, Any]:
    """One object for both kinds of client: our fields, then LocalAI's."""
    outcome = LOCALAI_OUTCOMES[operation.state]
    ours = operation.model_dump(mode="json")
    theirs = {
        "id": operation.backend,
        "name": operation.backend,
        "jobID": operation.op_id,
        "isBackend": True,
        "nodeID": operation.node_id,
        "taskType": "deletion" if operation.kind.rules.removes else "installation",
        "outcome": outcome,
        "startedAt": ours["created_at"],
        "finishedAt": ours["ended_at"],
    }
    return {**ours, **theirs, **({"error": operation.message} if outcome == "failed" else {})}


def list_entry(operation: OperationView) -> dict[str, Any]:
    """One object for both kinds of client: our fields, then LocalAI's; `progress` is LocalAI's, ours is in `gauge`."""
    ours = operation.model_dump(mode="json")
    return {**ours, "gauge": ours["progress"], **_localai_fields(operation)}


def list_order(operation: OperationView) -> tuple[int, str, str]:
    """LocalAI's sort order: least progress first, then by name."""
    return int(operation.progress.percentage), operation.backend, operation.op_id


def _localai_fields(operation: OperationView) -> dict[str, Any]:
    is_removal = operation.kind.rules.removes
    waits = operation.state in (State.QUEUED, State.WAITING)
    always = {
        "id": operation.backend,
        "name": operation.backend,
        "fullName": operation.backend,
        "jobID": operation.op_id,
        "progress": int(operation.progress.percentage),
        "taskType": "Waiting" if waits else "deletion" if is_removal else "Installation",
        "isDeletion": is_removal,
        "isBackend": True,
        "isQueued": waits,
        "cancellable": _cancellable(operation),
        "message": operation.message,
        "nodeID": operation.node_id,
        "nodes": [_node(operation)],
    }
    return {**always, **_when_set(operation)}


def _cancellable(operation: OperationView) -> bool:
    """Only where a cancel can take effect: a removal that has reached its node is completed."""
    is_past_it = operation.state in ON_NODE and not operation.kind.rules.cancellable_on_node
    return operation.state not in ENDED and not is_past_it


def _when_set(operation: OperationView) -> dict[str, Any]:
    """Fields that LocalAI omits when they are empty."""
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
