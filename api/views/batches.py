"""Views of batches: the entity's fields, with its state and its failures in words."""

from typing import TypeVar

from nodesmith.contracts.http.batches import BatchDetail, BatchView, FailureCause
from nodesmith.contracts.words import REASONS, tell
from nodesmith.domain.batch import AttemptFailures, Batch, FailureCount, Member
from nodesmith.domain.operation import Reason

View = TypeVar("View", bound=BatchView)


def batch_view(batch: Batch) -> BatchView:
    return _described(BatchView.model_validate(batch, from_attributes=True), batch)


def batch_detail(batch: Batch) -> BatchDetail:
    """The batch with all its members."""
    view = BatchDetail.model_validate(batch, from_attributes=True)
    for shown, member in zip(view.members, batch.members, strict=True):
        shown.detail = _detail(member)
    return _described(view, batch)


def _detail(member: Member) -> str:
    if member.operation_state is None:
        return member.detail
    return tell(member.operation_state, member.reason, member.detail)


def _described(view: View, batch: Batch) -> View:
    causes = [_cause(each) for each in batch.failures.causes]
    view.failed_attempts, view.failed_nodes, view.troubles = batch.failures.attempts, batch.failures.nodes, causes
    view.message = "; ".join(part for part in (_state(batch), _describe(batch.failures, causes)) if part)
    return view


def _state(batch: Batch) -> str:
    """One line: the state, its reason, and the counts of the members."""
    standing = ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in sorted(batch.counts.items()))
    return ": ".join(part for part in (batch.state, batch.detail, standing) if part)


def _cause(counted: FailureCount) -> FailureCause:
    """Replace a reason code by its sentence."""
    reason = Reason(counted.cause)
    cause = counted.cause if reason is Reason.UNKNOWN else REASONS[reason].sentence
    return FailureCause(cause=cause, attempts=counted.attempts, nodes=counted.nodes)


def _describe(failures: AttemptFailures, causes: list[FailureCause]) -> str:
    """One line with the most frequent causes; empty when nothing failed."""
    if not failures.attempts:
        return ""
    listed = ", ".join(f"{each.attempts} x {each.cause} ({_nodes(each.nodes)})" for each in causes)
    attempts = "1 failed attempt" if failures.attempts == 1 else f"{failures.attempts} failed attempts"
    return f"{attempts} on {_nodes(failures.nodes)}: {listed}"


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
