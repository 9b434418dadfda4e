"""How a watch survives an API that does not answer: what it tells, and how long it waits."""

from collections.abc import Iterator
from dataclasses import dataclass

from nodesmith.client.errors import ClientError

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True)
class LinkLost:
    """The API does not answer at the moment; what is watched continues."""

    why: str


class BackOff:
    """Waits longer after each failure in a row; without `is_known_to_exist` the first request must succeed."""

    def __init__(self, *, is_known_to_exist: bool) -> None:
        self._waits_for_answers = is_known_to_exist
        self._pauses = _pauses()

    def reset(self) -> None:
        """The API has answered with something new."""
        self._waits_for_answers = True
        self._pauses = _pauses()

    def take_failure(self, error: ClientError) -> tuple[LinkLost, float]:
        """Return what to tell and how long to wait; raise the error if waiting does not help."""
        if not error.is_retryable or not self._waits_for_answers:
            raise error
        return LinkLost(error.message), max(next(self._pauses), error.retry_after_s)


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_PAUSE_S)
