"""Downloads one blob: resumes after interruptions, and tries one source after another."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from nodesmith.agent.fetch.bandwidth import BandwidthLimit
from nodesmith.agent.fetch.partial_files import PartialFile
from nodesmith.agent.fetch.sources import Source, SourceBroke, SourceChanged, Stream
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Job
from nodesmith.agent.threads import Threads
from nodesmith.domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)

_READ_AHEAD = 64
_FIRST_PAUSE_S = 0.25
_MAX_PAUSE_S = 3.0
_PROGRESS = 1024
"""minimum bytes that count as progress, so that a source cannot stall the transfer by dripping"""

TRY_ELSEWHERE = frozenset({Reason.DOWNLOAD_FAILED, Reason.SOURCE_DOWN, Reason.SOURCE_DENIED, Reason.BAD_DIGEST})


@dataclass(frozen=True)
class Blob:
    """One file of an artifact: its digest, its size and its sources in order of preference."""

    key: str
    sha256: str
    size: int
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class TransferRules:
    idle: float
    """seconds without a byte before a retry"""
    tries: int
    """tries without progress before the transfer fails"""
    require_space: Callable[[int], None]
    require_for_archive: Callable[[int, int], None]
    """called with the total size and the missing bytes"""


class Transfer:
    """Transfers one blob into its partial file."""

    def __init__(
        self, job: Job, blob: Blob, path: Path, *, threads: Threads, bandwidth: BandwidthLimit, rules: TransferRules
    ) -> None:
        self.blob = blob
        self.partial = PartialFile(path)
        self.total = blob.size
        self.on_moved: Callable[[], None] = lambda: None
        self._job = job
        self._threads = threads
        self._bandwidth = bandwidth
        self._rules = rules
        self._reused = 0

    async def open(self) -> None:
        await self._threads.run(self._job.halt, self.partial.open, self._job.halt)
        self._reused = self.partial.size
        self._job.bytes_reused += self._reused

    async def fetch(self) -> None:
        """Fetch from the first source that delivers; received bytes are kept for the next source."""
        failures: list[OperationFailed] = []
        for source in self.blob.sources:
            try:
                return await self._fetch_from(source)
            except OperationFailed as why:
                if why.reason not in TRY_ELSEWHERE:
                    raise
                log.warning("download.source_failed", op_id=self._job.command.op_id, error=str(why))
                failures.append(why)
        raise combined_failure(failures)

    async def _fetch_from(self, source: Source) -> None:
        """Complete and verify; a resumed file with a wrong digest is discarded and fetched again once."""
        resumed = self.partial.size > 0
        await self._complete(source)
        if resumed and not self._digest_matches():
            log.warning("download.partial_was_wrong", op_id=self._job.command.op_id)
            self._restart()
            await self._complete(source)
        if self._digest_matches():
            return
        log.warning("download.bad_digest", op_id=self._job.command.op_id, found=self.partial.digest)
        self._restart()
        # The found digest is omitted: for a local file it would reveal the content to anyone who may install.
        raise OperationFailed(
            Reason.BAD_DIGEST, f"The source delivered content that does not match sha256 {self.blob.sha256}."
        )

    async def _complete(self, source: Source) -> None:
        """Retry the source until the blob is complete, or too many tries made no progress."""
        stalled_tries = changes = 0
        while not self._is_complete():
            before = self.partial.size
            try:
                await self._resume_from(source)
            except SourceChanged:
                self._restart()
                changes += 1
                broke = SourceBroke("The source's content keeps changing.")
            except SourceBroke as error:
                stalled_tries = 0 if self.partial.size - before >= _PROGRESS else stalled_tries + 1
                broke = error
            else:
                return
            if stalled_tries >= self._rules.tries or changes > self._rules.tries:
                raise OperationFailed(broke.reason, str(broke)) from broke
            log.info("download.interrupted", op_id=self._job.command.op_id, error=str(broke))
            await asyncio.sleep(_pause(stalled_tries))

    async def _resume_from(self, source: Source) -> None:
        partial = self.partial
        validator = partial.validator_of(source.uri)
        start = partial.size if validator or self.blob.sha256 else 0
        async with source.open(start, validator) as stream:
            if stream.start not in (0, partial.size):
                raise OperationFailed(Reason.DOWNLOAD_FAILED, "The source sent another range than requested.")
            if stream.start and validator and stream.validator and stream.validator != validator:
                raise SourceChanged
            if stream.start != partial.size:
                self._restart()
            self.total = self.blob.size or stream.total
            missing = max(self.total - partial.size, 0)
            # a declared size was checked before the first byte
            self._rules.require_for_archive(0 if self.blob.size else self.total, missing)
            self.on_moved()
            partial.save_validator(source.uri, stream.validator)
            await self._write_stream(stream)
        if partial.size < self.total and not self._is_complete():
            raise SourceBroke(f"The source ended after {partial.size} of {self.total} bytes.")

    async def _write_stream(self, stream: Stream) -> None:
        """Read ahead while a thread writes; blocks that arrive meanwhile are written together."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(_READ_AHEAD)
        reading = asyncio.create_task(self._read_ahead(stream.blocks, queue))
        try:
            while gathered := await _next_blocks(queue):
                await self._write(gathered)
            await reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read_ahead(self, blocks: AsyncIterator[bytes], queue: asyncio.Queue[bytes]) -> None:
        """Queue the blocks, then an empty block as end mark; a source that only drips counts as silent."""
        since, came = time.monotonic(), 0
        try:
            async for block in blocks:
                if not block:
                    continue
                came += len(block)
                await self._bandwidth.throttle(len(block))
                await queue.put(block)
                if came >= _PROGRESS:
                    since, came = time.monotonic(), 0
                elif time.monotonic() - since > self._rules.idle:
                    raise SourceBroke("The source sends too slowly.")
        finally:
            reader = asyncio.current_task()
            if reader is not None and not reader.cancelling():
                await queue.put(b"")

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
        return bool(self.blob.sha256) and self.partial.size > 0 and self._digest_matches()

    def _digest_matches(self) -> bool:
        return not self.blob.sha256 or self.partial.digest == self.blob.sha256


def combined_failure(failures: list[OperationFailed]) -> OperationFailed:
    """Combine the failures of all sources; one that may recover decides the reason."""
    chosen = next((why for why in failures if why.reason is Reason.SOURCE_DOWN), failures[0])
    message = "; ".join(dict.fromkeys(str(why) for why in failures))
    return OperationFailed(chosen.reason, message, retry_after_s=chosen.retry_after_s)


async def _next_blocks(queue: asyncio.Queue[bytes]) -> list[bytes]:
    """Return all queued blocks, at least one; empty at the end."""
    gathered = [await queue.get()]
    while gathered[-1] and not queue.empty():
        gathered.append(queue.get_nowait())
    if gathered[-1]:
        return gathered
    if len(gathered) > 1:
        queue.put_nowait(b"")
    return gathered[:-1]


def _pause(stalled_tries: int) -> float:
    """Return the back-off: grows without progress, with jitter so that nodes do not retry in step."""
    longest = min(_FIRST_PAUSE_S * 2 ** max(stalled_tries - 1, 0), _MAX_PAUSE_S)
    return float(longest * random.uniform(0.5, 1.0))  # noqa: S311
