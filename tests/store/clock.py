"""A clock that only the test moves."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


class SetClock:
    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def forward(self, *, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now
