"""The event stream: one reader of the feed per process, shared by every open stream.

A stream stores only a cursor: unsent events are in the window that all streams share, or in the database. Progress
ticks are gauges, so only the newest of each operation is queued. A slow reader costs no memory.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field

import structlog

from nodesmith.api.views.operations import event_view
from nodesmith.contracts.http.operations import RESET, OperationEvent, ProgressTick, StreamReset
from nodesmith.contracts.http.replicas import ModelNotice
from nodesmith.contracts.nats.messages import Progress
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.operation import Phase, StateChange
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.operations.events import EventFeed

log = structlog.stdlib.get_logger(__name__)

WINDOW = 2000
PAGE = 500
KEEP_ALIVE_S = 15.0
STUCK_AFTER_S = 30.0
KEEP_ALIVE_FRAME = b": still here\n\n"
RETRY_MS = 1000
GATHER_S = 0.05
"""between two reads of the feed, so that events that arrive together are read together"""

IsAdmitted = Callable[[], Awaitable[bool]]
"""checks whether the credential that opened a stream is still valid"""


@dataclass
class StreamFilter:
    """Which operations a stream covers; empty means all."""

    op_id: str | None = None
    node_id: str | None = None
    batch_id: str | None = None
    batch_ops: set[str] = field(default_factory=set)
    """members of the batch, because a tick does not name its batch"""

    @property
    def covers_everything(self) -> bool:
        return self.op_id is None and self.node_id is None and self.batch_id is None

    def add_member(self, event: OperationEvent) -> None:
        if self.batch_id is not None:
            self.batch_ops.add(event.op_id)

    def matches(self, event: OperationEvent) -> bool:
        return (
            self.op_id in (None, event.op_id)
            and self.node_id in (None, event.node_id)
            and self.batch_id in (None, event.batch_id)
        )

    def matches_tick(self, tick: Progress) -> bool:
        return (
            self.op_id in (None, tick.op_id)
            and self.node_id in (None, tick.node_id)
            and (self.batch_id is None or tick.op_id in self.batch_ops)
        )


class Stream:
    """One reader: its cursor, and its queued ticks."""

    def __init__(self, interest: StreamFilter, cursor: int, restores: int = 0) -> None:
        self.interest = interest
        self.cursor = cursor
        self.restores = restores
        """restore counter of the database that the reader has last seen"""
        self.news = asyncio.Event()
        self._ticks: dict[str, bytes] = {}

    def put_tick(self, tick: Progress, frame: bytes) -> None:
        if self.interest.matches_tick(tick):
            self._ticks[tick.op_id] = frame
            self.news.set()

    def put_notice(self, model: str, frame: bytes) -> None:
        """Queue a notice about a model, unless the stream is about one operation, node or batch."""
        if self.interest.covers_everything:
            self._ticks[f"model:{model}"] = frame
            self.news.set()

    def take_ticks(self) -> list[bytes]:
        waiting, self._ticks = list(self._ticks.values()), {}
        return waiting


class KeepAlive:
    """When the next keep-alive is due: by the clock, regardless of other frames."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._clock = asyncio.get_running_loop().time
        self._due = self._clock() + every_s

    def remaining_s(self) -> float:
        return max(0.0, self._due - self._clock())

    def is_due(self) -> bool:
        """Return whether it is due; if so, schedule the next one."""
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
        """a reader that takes nothing for this long is disconnected"""
        self._feed = feed
        self._clock = clock
        self._window = window
        self._keep_alive_s = keep_alive_s
        self._streams: set[Stream] = set()
        self._closed = False
        self._events: list[OperationEvent] = []
        self._numbers: list[int] = []
        self._floor: int | None = None
        """the window has every event after this number, up to `_last`; None: nothing read yet"""
        self._last = 0
        self._newest: StateChange | None = None
        """the event `_last`: if it is gone, an older copy of the database was restored"""
        self._restores = 0

    async def run(self) -> None:
        """Follow the feed until the process ends."""
        async with aclosing(self._feed.wakeups()) as wakeups:
            async for changed in wakeups:
                for model in changed:
                    self._tell_model(model)
                try:
                    await self._catch_up()
                except NodesmithError as error:
                    log.warning("events.not_read", error=error.message)
                await asyncio.sleep(GATHER_S)

    def close(self) -> None:
        """End every stream: clients reconnect to the next process."""
        self._closed = True
        self._wake()

    def tick(self, progress: Progress) -> None:
        """Send a progress tick to the streams that cover its operation."""
        if self._streams:
            frame = _frame("progress", self._as_tick(progress).model_dump_json())
            for stream in self._streams:
                stream.put_tick(progress, frame)

    def _tell_model(self, model: str) -> None:
        """Send a notice that a model changed to the streams that cover all operations."""
        frame = _frame("model", ModelNotice(model=model).model_dump_json())
        for stream in self._streams:
            stream.put_notice(model, frame)

    async def start_cursor(self, interest: StreamFilter, last_event_id: int | None) -> int:
        """Return where a stream starts: after the number that its reader knows, else now.

        The members of a batch are read in the same snapshot: later members have an event after that number.
        """
        if interest.batch_id is None:
            newest = await self._feed.latest_id()
        else:
            newest, interest.batch_ops = await self._feed.members_of(interest.batch_id)
        return newest if last_event_id is None else min(last_event_id, newest)

    async def follow(
        self, interest: StreamFilter, cursor: int, is_admitted: IsAdmitted, *, is_reset: bool = False
    ) -> AsyncGenerator[bytes]:
        """Yield the frames of one stream: missed events, then new ones, until its credential is no longer valid.

        `is_reset`: the reader knows a number that the database does not have.
        """
        pulse = KeepAlive(self._keep_alive_s)
        with self._register(Stream(interest, cursor, self._restores)) as stream:
            yield f"retry: {RETRY_MS}\nid: {cursor}\n\n".encode()
            if is_reset:
                yield _reset(cursor)
            async with aclosing(self._frames(stream, pulse)) as frames:
                async for frame in frames:
                    if frame:
                        yield frame
                    if pulse.is_due():
                        yield KEEP_ALIVE_FRAME
                        if not await is_admitted():
                            return

    async def _frames(self, stream: Stream, pulse: KeepAlive) -> AsyncGenerator[bytes]:
        """Yield what can be sent; an empty frame whenever nothing is left."""
        while not self._closed:
            stream.news.clear()
            if stream.restores != self._restores:
                stream.restores, stream.cursor = self._restores, self._last
                yield _reset(stream.cursor)
            async for frame in self._unsent(stream):
                yield frame
            for frame in stream.take_ticks():
                yield frame
            await _wait(stream.news, pulse.remaining_s())
            yield b""

    @contextmanager
    def _register(self, stream: Stream) -> Iterator[Stream]:
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    async def _unsent(self, stream: Stream) -> AsyncIterator[bytes]:
        """Read from the window if it covers the cursor, else page by page from the database."""
        while not self._closed:
            page, cursor, is_last = await self._page(stream)
            for event in page:
                stream.interest.add_member(event)
                yield _frame("operation", event.model_dump_json(), number=event.id)
            stream.cursor = cursor
            if is_last:
                return

    async def _page(self, stream: Stream) -> tuple[list[OperationEvent], int, bool]:
        """Return some matching events, the cursor after them, and whether that was all."""
        wanted, cursor, known = stream.interest, stream.cursor, self._last
        if self._floor is not None and cursor >= self._floor:
            newer = self._events[bisect_right(self._numbers, cursor) :]
            return [event for event in newer if wanted.matches(event)], max(cursor, known), True
        filters = {"op_id": wanted.op_id, "node_id": wanted.node_id, "batch_id": wanted.batch_id}
        try:
            page = [event_view(each) for each in await self._feed.after(cursor, limit=PAGE, **filters)]
        except NodesmithError as error:
            log.warning("events.not_read", error=error.message)
            return [], cursor, True
        if len(page) == PAGE:
            return page, page[-1].id, False
        return page, max(cursor, known, *(event.id for event in page)), True

    async def _catch_up(self) -> None:
        if self._floor is None:
            await self._restart()
        is_full = True
        while is_full:
            page = await self._next_page()
            if page is None:
                log.warning("events.restored", last=self._last)
                self._restores += 1
                await self._restart()
                self._wake()
                return
            is_full = len(page) == PAGE
            if page:
                self._append(page)

    async def _next_page(self) -> Sequence[StateChange] | None:
        """Return None if the newest event that we know has disappeared from the database."""
        if self._newest is None:
            return await self._feed.after(self._last, limit=PAGE)
        return await self._feed.from_event(self._newest, limit=PAGE)

    async def _restart(self) -> None:
        self._newest = await self._feed.newest()
        self._last = self._floor = self._newest.id if self._newest else 0
        self._events, self._numbers = [], []

    def _append(self, page: Sequence[StateChange]) -> None:
        self._events += [event_view(change) for change in page]
        self._numbers += [change.id for change in page]
        self._newest, self._last = page[-1], page[-1].id
        self._trim()
        self._wake()

    def _trim(self) -> None:
        """Trim in large steps: moving the window at each event costs more than the memory saved."""
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


def _reset(cursor: int) -> bytes:
    """Tell a reader that the event numbers went back; it reloads what it shows and continues from this number."""
    return _frame(RESET, StreamReset(last_event_id=cursor).model_dump_json(), number=cursor)


def _frame(event: str, data: str, *, number: int | None = None) -> bytes:
    identity = "" if number is None else f"id: {number}\n"
    return f"{identity}event: {event}\ndata: {data}\n\n".encode()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
