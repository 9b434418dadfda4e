"""Bringing one blob here: from one place after another, again and again where it broke off."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.failures import OperationFailed
from agent.job import Job
from agent.pace import Pace
from agent.partial import Partial
from agent.sources import Source, SourceBroke, SourceChanged, Stream
from agent.threads import Threads
from domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)

_READ_AHEAD = 64
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 3.0
_PROGRESS = 1024
"""fewer bytes than that are no progress: a source may drip to keep us waiting"""

TRY_ELSEWHERE = frozenset({Reason.DOWNLOAD_FAILED, Reason.SOURCE_DOWN, Reason.SOURCE_DENIED, Reason.BAD_DIGEST})


@dataclass(frozen=True)
class Blob:
    """One file of an artifact: how to know that it is right, and where it is, in the order of asking."""

    key: str
    sha256: str
    size: int
    places: tuple[Source, ...]


@dataclass(frozen=True)
class Rules:
    idle: float
    """seconds without a byte after which a source is asked again"""
    tries: int
    """so often without progress, and the attempt has failed"""
    require_space: Callable[[int], None]
    require_for_archive: Callable[[int, int], None]
    """size of the whole, and how much of it is missing"""


class Transfer:
    """One blob on its way into its partial file."""

    def __init__(self, job: Job, blob: Blob, path: Path, *, threads: Threads, pace: Pace, rules: Rules) -> None:
        self.blob = blob
        self.partial = Partial(path)
        self.total = blob.size
        self.on_moved: Callable[[], None] = lambda: None
        self._job = job
        self._threads = threads
        self._pace = pace
        self._rules = rules
        self._reused = 0

    async def open(self) -> None:
        await self._threads.run(self._job.halt, self.partial.open, self._job.halt)
        self._reused = self.partial.size
        self._job.bytes_reused += self._reused

    async def fetch(self) -> None:
        """From the first place that has it; what is here already is kept for the next place."""
        failures: list[OperationFailed] = []
        for place in self.blob.places:
            try:
                return await self._fetch_from(place)
            except OperationFailed as why:
                if why.reason not in TRY_ELSEWHERE:
                    raise
                log.warning("download.failed_here", op_id=self._job.command.op_id, error=str(why))
                failures.append(why)
        raise said_together(failures)

    async def _fetch_from(self, place: Source) -> None:
        """A partial file that proves wrong is thrown away once; the fresh one has the last word."""
        resumed = self.partial.size > 0
        await self._complete(place)
        if resumed and not self._is_wanted():
            log.warning("download.partial_was_wrong", op_id=self._job.command.op_id)
            self._restart()
            await self._complete(place)
        if self._is_wanted():
            return
        found = self.partial.digest
        self._restart()
        raise OperationFailed(Reason.BAD_DIGEST, f"Expected sha256 {self.blob.sha256}, found {found}.")

    async def _complete(self, place: Source) -> None:
        """Ask the source again until it has delivered, or has brought nothing for too often."""
        fruitless = changes = 0
        while not self._is_complete():
            before = self.partial.size
            try:
                await self._read_on(place)
            except SourceChanged:
                self._restart()
                changes += 1
                broke = SourceBroke("The source changes all the time.")
            except SourceBroke as error:
                fruitless = 0 if self.partial.size - before >= _PROGRESS else fruitless + 1
                broke = error
            else:
                return
            if fruitless >= self._rules.tries or changes > self._rules.tries:
                raise OperationFailed(broke.reason, str(broke)) from broke
            log.info("download.broke_off", op_id=self._job.command.op_id, error=str(broke))
            await asyncio.sleep(_pause(fruitless))

    async def _read_on(self, place: Source) -> None:
        partial = self.partial
        validator = partial.validator_of(place.uri)
        start = partial.size if validator or self.blob.sha256 else 0
        async with place.open(start, validator) as stream:
            if stream.start not in (0, partial.size):
                raise OperationFailed(Reason.DOWNLOAD_FAILED, "The source sent another part than was asked for.")
            if stream.start and validator and stream.validator and stream.validator != validator:
                raise SourceChanged
            if stream.start != partial.size:
                self._restart()
            self.total = self.blob.size or stream.total
            missing = max(self.total - partial.size, 0)
            # a size that was declared has been looked at before the first byte
            self._rules.require_for_archive(0 if self.blob.size else self.total, missing)
            self.on_moved()
            partial.note(place.uri, stream.validator)
            await self._pour(stream)
        if partial.size < self.total and not self._is_complete():
            raise SourceBroke(f"The source ended after {partial.size} of {self.total} bytes.")

    async def _pour(self, stream: Stream) -> None:
        """Read on while a thread writes: blocks gather by themselves, and all that came is written."""
        ahead: asyncio.Queue[bytes] = asyncio.Queue(_READ_AHEAD)
        reading = asyncio.create_task(self._read_ahead(stream.blocks, ahead))
        try:
            while gathered := await _gathered(ahead):
                await self._write(gathered)
            await reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read_ahead(self, blocks: AsyncIterator[bytes], ahead: asyncio.Queue[bytes]) -> None:
        """An empty block is the end, good or bad; a source that only drips is as good as silent."""
        since, came = time.monotonic(), 0
        try:
            async for block in blocks:
                if not block:
                    continue
                came += len(block)
                await self._pace.take(len(block))
                await ahead.put(block)
                if came >= _PROGRESS:
                    since, came = time.monotonic(), 0
                elif time.monotonic() - since > self._rules.idle:
                    raise SourceBroke("The source sends next to nothing.")
        finally:
            reader = asyncio.current_task()
            if reader is not None and not reader.cancelling():
                await ahead.put(b"")

    async def _write(self, blocks: list[bytes]) -> None:
        came = sum(map(len, blocks))
        if self.blob.size and self.partial.size + came > self.blob.size:
            self._restart()
            raise OperationFailed(Reason.BAD_DIGEST, f"The source sends more than {self.blob.size} bytes.")
        self._rules.require_space(came)
        await self._threads.run(self._job.halt, self.partial.append, blocks)
        self._job.bytes_fetched += came
        self.on_moved()

    def _restart(self) -> None:
        self.partial.restart()
        self._job.bytes_reused -= self._reused
        self._reused = 0

    def _is_complete(self) -> bool:
        return bool(self.blob.sha256) and self.partial.size > 0 and self._is_wanted()

    def _is_wanted(self) -> bool:
        return not self.blob.sha256 or self.partial.digest == self.blob.sha256


def said_together(failures: list[OperationFailed]) -> OperationFailed:
    """One failure for all places: a source that may come back goes before one that has nothing for us."""
    chosen = next((why for why in failures if why.reason is Reason.SOURCE_DOWN), failures[0])
    words = "; ".join(dict.fromkeys(str(why) for why in failures))
    return OperationFailed(chosen.reason, words, retry_after_s=chosen.retry_after_s)


async def _gathered(ahead: asyncio.Queue[bytes]) -> list[bytes]:
    """All that has come by now, at least one block; nothing at the end."""
    gathered = [await ahead.get()]
    while gathered[-1] and not ahead.empty():
        gathered.append(ahead.get_nowait())
    if gathered[-1]:
        return gathered
    if len(gathered) > 1:
        ahead.put_nowait(b"")
    return gathered[:-1]


def _pause(fruitless: int) -> float:
    """Growing while nothing comes, never in step with other nodes."""
    longest = min(_FIRST_PAUSE_S * 2 ** max(fruitless - 1, 0), _LONGEST_PAUSE_S)
    return float(longest * random.uniform(0.5, 1.0))  # noqa: S311
