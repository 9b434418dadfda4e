"""The event stream: one reader of the feed for the whole process, shared by every open stream.

A stream holds a cursor and nothing else: what it has not sent yet is in the window all streams share, or in the
database. Progress ticks are gauges, so only the newest of each operation waits. A slow reader costs no memory.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field

import structlog

from contracts.messages import Progress
from contracts.operation_http import OperationEvent, ProgressTick
from domain.errors import NodesmithError
from domain.operation import Phase
from store.clock import Clock, utc_now
from store.events import EventFeed

log = structlog.stdlib.get_logger(__name__)

WINDOW = 2000
PAGE = 500
KEEP_ALIVE_S = 15.0
STUCK_AFTER_S = 30.0
STILL_HERE = b": still here\n\n"
RETRY_MS = 1000
GATHER_S = 0.05
"""between two looks at the feed: what comes together is read together, and nobody sees the difference"""

IsAdmitted = Callable[[], Awaitable[bool]]
"""whether the credential that opened a stream is still good"""


@dataclass
class Interest:
    """Which operations a stream is about; empty = all."""

    op_id: str | None = None
    node_id: str | None = None
    batch_id: str | None = None
    batch_ops: set[str] = field(default_factory=set)
    """members of the batch: a tick does not say which batch it belongs to"""

    def learn(self, event: OperationEvent) -> None:
        if self.batch_id is not None:
            self.batch_ops.add(event.op_id)

    def takes(self, event: OperationEvent) -> bool:
        return (
            self.op_id in (None, event.op_id)
            and self.node_id in (None, event.node_id)
            and self.batch_id in (None, event.batch_id)
        )

    def takes_tick(self, tick: Progress) -> bool:
        return (
            self.op_id in (None, tick.op_id)
            and self.node_id in (None, tick.node_id)
            and (self.batch_id is None or tick.op_id in self.batch_ops)
        )


class Stream:
    """One reader: where it is, and the ticks that wait for it."""

    def __init__(self, interest: Interest, cursor: int) -> None:
        self.interest = interest
        self.cursor = cursor
        self.news = asyncio.Event()
        self._ticks: dict[str, bytes] = {}

    def put_tick(self, tick: Progress, frame: bytes) -> None:
        if self.interest.takes_tick(tick):
            self._ticks[tick.op_id] = frame
            self.news.set()

    def take_ticks(self) -> list[bytes]:
        waiting, self._ticks = list(self._ticks.values()), {}
        return waiting


class Pulse:
    """When the next keep-alive is due: by the clock, whatever else the stream sends meanwhile."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._clock = asyncio.get_running_loop().time
        self._due = self._clock() + every_s

    def left(self) -> float:
        return max(0.0, self._due - self._clock())

    def take(self) -> bool:
        """Whether it is due; if so, the next one is set."""
        now = self._clock()
        if now < self._due:
            return False
        self._due += self._every_s
        if self._due <= now:
            self._due = now + self._every_s
        return True


class EventHub:
    """Reads the feed once, keeps a window of it, and wakes the streams."""

    def __init__(
        self,
        feed: EventFeed,
        *,
        clock: Clock = utc_now,
        window: int = WINDOW,
        keep_alive_s: float = KEEP_ALIVE_S,
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        self.stuck_after_s = stuck_after_s
        """a reader that takes nothing for so long is let go"""
        self._feed = feed
        self._clock = clock
        self._window = window
        self._keep_alive_s = keep_alive_s
        self._streams: set[Stream] = set()
        self._closed = False
        self._events: list[OperationEvent] = []
        self._numbers: list[int] = []
        self._floor: int | None = None
        """every event after this number, and up to `_last`, is in the window; None: nothing read yet"""
        self._last = 0

    async def run(self) -> None:
        """Follow the feed for as long as the process lives."""
        async with aclosing(self._feed.wakeups()) as wakeups:
            async for _ in wakeups:
                try:
                    await self._catch_up()
                except NodesmithError as error:
                    log.warning("events.not_read", error=error.message)
                await asyncio.sleep(GATHER_S)

    def close(self) -> None:
        """End every stream: their clients come back to the next process."""
        self._closed = True
        self._wake()

    def tick(self, progress: Progress) -> None:
        """Pass a gauge on to whoever looks."""
        if self._streams:
            frame = _frame("progress", self._as_tick(progress).model_dump_json())
            for stream in self._streams:
                stream.put_tick(progress, frame)

    async def start_of(self, interest: Interest, last_event_id: int | None) -> int:
        """Where a stream begins: after the number its reader knows, else now.

        The members of a batch are read in the same snapshot: who joins it later has an event after that number.
        """
        if interest.batch_id is None:
            newest = await self._feed.latest_id()
        else:
            newest, interest.batch_ops = await self._feed.members_of(interest.batch_id)
        return newest if last_event_id is None else min(last_event_id, newest)

    async def follow(self, interest: Interest, cursor: int, is_admitted: IsAdmitted) -> AsyncGenerator[bytes]:
        """The frames of one stream: first what was missed, then what happens; ends when its credential does."""
        pulse = Pulse(self._keep_alive_s)
        with self._opened(Stream(interest, cursor)) as stream:
            yield f"retry: {RETRY_MS}\nid: {cursor}\n\n".encode()
            async with aclosing(self._frames(stream, pulse)) as frames:
                async for frame in frames:
                    if frame:
                        yield frame
                    if pulse.take():
                        yield STILL_HERE
                        if not await is_admitted():
                            return

    async def _frames(self, stream: Stream, pulse: Pulse) -> AsyncGenerator[bytes]:
        """What there is to send; an empty frame each time that there was nothing more."""
        while not self._closed:
            stream.news.clear()
            async for frame in self._unsent(stream):
                yield frame
            for frame in stream.take_ticks():
                yield frame
            await _within(stream.news, pulse.left())
            yield b""

    @contextmanager
    def _opened(self, stream: Stream) -> Iterator[Stream]:
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    async def _unsent(self, stream: Stream) -> AsyncIterator[bytes]:
        """From the window if the cursor is in it, else page by page from the database."""
        while not self._closed:
            page, cursor, is_last = await self._page(stream)
            for event in page:
                stream.interest.learn(event)
                yield _frame("operation", event.model_dump_json(), number=event.id)
            stream.cursor = cursor
            if is_last:
                return

    async def _page(self, stream: Stream) -> tuple[list[OperationEvent], int, bool]:
        """Some events of interest, the cursor after them, and whether that was all."""
        wanted, cursor, known = stream.interest, stream.cursor, self._last
        if self._floor is not None and cursor >= self._floor:
            newer = self._events[bisect_right(self._numbers, cursor) :]
            return [event for event in newer if wanted.takes(event)], max(cursor, known), True
        filters = {"op_id": wanted.op_id, "node_id": wanted.node_id, "batch_id": wanted.batch_id}
        try:
            page = list(await self._feed.after(cursor, limit=PAGE, **filters))
        except NodesmithError as error:
            log.warning("events.not_read", error=error.message)
            return [], cursor, True
        if len(page) == PAGE:
            return page, page[-1].id, False
        return page, max(cursor, known, *(event.id for event in page)), True

    async def _catch_up(self) -> None:
        if self._floor is None:
            self._last = self._floor = await self._feed.latest_id()
        is_full = True
        while is_full and (page := await self._feed.after(self._last, limit=PAGE)):
            self._events += page
            self._numbers += [event.id for event in page]
            self._last = self._numbers[-1]
            self._trim()
            self._wake()
            is_full = len(page) == PAGE

    def _trim(self) -> None:
        """In big steps: moving the window at each event would cost more than the memory is worth."""
        if len(self._events) > 2 * self._window:
            gone = len(self._events) - self._window
            self._floor = self._numbers[gone - 1]
            del self._events[:gone], self._numbers[:gone]

    def _wake(self) -> None:
        for stream in self._streams:
            stream.news.set()

    def _as_tick(self, progress: Progress) -> ProgressTick:
        return ProgressTick(
            op_id=progress.op_id,
            node_id=progress.node_id,
            backend=progress.backend,
            phase=None if progress.phase is Phase.UNKNOWN else progress.phase,
            bytes_done=progress.bytes_done,
            bytes_total=progress.bytes_total,
            percentage=progress.percentage,
            rate=progress.rate,
            eta_s=progress.eta_s,
            at=self._clock(),
        )


def _frame(event: str, data: str, *, number: int | None = None) -> bytes:
    identity = "" if number is None else f"id: {number}\n"
    return f"{identity}event: {event}\ndata: {data}\n\n".encode()


async def _within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
