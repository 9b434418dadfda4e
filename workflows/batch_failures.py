"""Counts the failures of a batch against its limit."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from nodesmith.contracts.temporal.batches import BatchCarried, BatchInput, MembersWatched
    from nodesmith.domain.operation import State

FAILURES = frozenset({State.FAILED, State.EXPIRED, State.DEAD_LETTER})


class Failures:
    """Counts failed members, or every failed attempt if the batch has `count_attempts`."""

    def __init__(self, batch: BatchInput, carried: BatchCarried) -> None:
        self._limit = batch.max_failures
        self._counts_attempts = batch.count_attempts
        self.members = carried.failures
        self.attempts = dict(carried.attempts)
        """failed attempts of open members, by operation id"""
        self.ended_attempts = carried.ended_attempts

    @property
    def known_attempts(self) -> dict[str, int] | None:
        return self.attempts if self._counts_attempts else None

    def count(self, watched: MembersWatched) -> None:
        self.attempts |= watched.attempts
        for op_id, state in watched.ended.items():
            self.members += state in FAILURES
            attempts = self.attempts.pop(op_id, 0)
            final_attempt = state is State.FAILED or (state in FAILURES and not attempts)
            self.ended_attempts += attempts + final_attempt

    def exceed_limit(self) -> bool:
        return self._limit is not None and self._total() >= self._limit

    def describe(self) -> str:
        number = self._total()
        what = "failed attempt" if self._counts_attempts else "failure"
        return f"{number} {what}" if number == 1 else f"{number} {what}s"

    def _total(self) -> int:
        if self._counts_attempts:
            return self.ended_attempts + sum(self.attempts.values())
        return self.members
