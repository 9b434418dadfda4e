"""Progress of one operation: rate-limited, monotonic, and below 100 % until the end."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from nodesmith.contracts.nats.messages import Command, Progress
from nodesmith.domain.operation import Phase

Publish = Callable[[Progress], Awaitable[None]]

_MAX_PERCENTAGE = 99.0
_RATE_WINDOW_S = 5.0
_KIB = 1024


class Gauge:
    """Publishes the first change at once, then at most one report per interval, always the latest value."""

    def __init__(self, command: Command, publish: Publish, *, every: float) -> None:
        self.decision = command.decision
        self._command = command
        self._publish = publish
        self._every = every
        self._phase = Phase.RESOLVING
        self._done = 0
        self._total = command.size
        # after an agent restart the decision is the same, so sequence numbers must be higher than before
        self._seq = time.time_ns() // 1_000_000
        self._samples: deque[tuple[float, int]] = deque()
        self._moved = asyncio.Event()
        self._publisher = asyncio.create_task(self._publish_moves())

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def bytes_done(self) -> int:
        return self._done

    @property
    def bytes_total(self) -> int:
        return self._total

    def move(self, phase: Phase, done: int | None = None, total: int | None = None) -> None:
        """Record phase and bytes; byte counts never decrease."""
        self._phase = phase
        self._total = max(self._total, total or 0)
        self._done = max(self._done, done or 0)
        self._sample()
        self._moved.set()

    def mark_active(self) -> None:
        """Signal activity without new bytes."""
        self._sample()
        self._moved.set()

    def now(self) -> Progress:
        rate = self._rate()
        left = max(self._total - self._done, 0)
        reached = progress_of(self._command, self.decision, self._phase, self._done, self._total)
        eta_s = round(left / rate, 1) if rate and left else None
        return reached.model_copy(update={"seq": self._seq, "rate": round(rate, 1), "eta_s": eta_s})

    async def close(self) -> None:
        """Publish the last value if it is still unpublished."""
        self._publisher.cancel()
        await asyncio.wait([self._publisher])
        if self._moved.is_set():
            await self._publish_now()

    async def _publish_moves(self) -> None:
        while True:
            await self._moved.wait()
            await self._publish_now()
            await asyncio.sleep(self._every)

    async def _publish_now(self) -> None:
        self._moved.clear()
        self._seq += 1
        await self._publish(self.now())

    def _sample(self) -> None:
        now = time.monotonic()
        self._samples.append((now, self._done))
        while now - self._samples[0][0] > _RATE_WINDOW_S and len(self._samples) > 1:
            self._samples.popleft()

    def _rate(self) -> float:
        if len(self._samples) < 2:  # noqa: PLR2004 - a rate needs two points
            return 0.0
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began) if ended > began else 0.0


def progress_of(command: Command, decision: int, phase: Phase, done: int, total: int) -> Progress:
    """Build the progress message of an operation."""
    return Progress(
        op_id=command.op_id,
        backend=command.backend,
        family=command.family,
        file_name=command.uri.rsplit("/", 1)[-1].partition("@")[0],
        current=human_size(done),
        total=human_size(total),
        percentage=round(min(100.0 * done / total, _MAX_PERCENTAGE), 1) if total else 0.0,
        phase=phase,
        decision=decision,
        bytes_done=done,
        bytes_total=total,
    )


def human_size(size: int) -> str:
    """Format a size as LocalAI does: 1.5 MiB."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < _KIB:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KIB
    return f"{value:.1f} TiB"
