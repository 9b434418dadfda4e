"""How much has failed in a batch, and whether that is too much."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from contracts.batches import BatchCarried, BatchInput, Watched
    from domain.operation import State

FAILURES = frozenset({State.FAILED, State.EXPIRED, State.DEAD_LETTER})


class Failures:
    """Counts members that failed; and every failed attempt, if the batch was asked to."""

    def __init__(self, batch: BatchInput, carried: BatchCarried) -> None:
        self._limit = batch.max_failures
        self._counts_attempts = batch.count_attempts
        self.members = carried.failures
        self.attempts = dict(carried.attempts)
        """failed attempts of members that are open, by operation"""
        self.ended_attempts = carried.ended_attempts

    @property
    def known_attempts(self) -> dict[str, int] | None:
        return self.attempts if self._counts_attempts else None

    def note(self, watched: Watched) -> None:
        self.attempts |= watched.attempts
        for op_id, state in watched.ended.items():
            self.members += state in FAILURES
            attempts = self.attempts.pop(op_id, 0)
            last = state is State.FAILED or (state in FAILURES and not attempts)
            self.ended_attempts += attempts + last

    def are_too_many(self) -> bool:
        return self._limit is not None and self._counted() >= self._limit

    def told(self) -> str:
        number = self._counted()
        what = "failed attempt" if self._counts_attempts else "failure"
        return f"{number} {what}" if number == 1 else f"{number} {what}s"

    def _counted(self) -> int:
        if self._counts_attempts:
            return self.ended_attempts + sum(self.attempts.values())
        return self.members
