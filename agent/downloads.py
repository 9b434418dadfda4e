"""Downloads that go on where they broke off: partial files are keyed by the artifact's digest."""

import asyncio
import contextlib
import hashlib
import re
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from agent.failures import OperationFailed, Stopped
from agent.job import Job
from agent.sources import Source, SourceBroke, SourceChanged, Sources, Stream
from agent.threads import Threads
from contracts.messages import Command
from domain.operation import Phase, Reason

log = structlog.stdlib.get_logger(__name__)

_BLOCK = 1024 * 1024
_READ_AHEAD = 64
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 3.0
_ABANDONED_S = 7 * 86400
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORTHLESS = frozenset({Reason.BAD_ARCHIVE, Reason.ARCHIVE_ESCAPES})


class Partial:
    """The part of an artifact that is here. Its methods block; one job at a time holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._note = path.with_suffix(".source")
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def open(self, halt: threading.Event) -> None:
        """Take up what an earlier try has fetched: hash it, then append."""
        self._file = self.path.open("a+b")
        self._file.seek(0)
        while block := self._file.read(_BLOCK):
            if halt.is_set():
                raise Stopped
            self._hash.update(block)
            self.size += len(block)

    def append(self, block: bytes) -> None:
        if self._file is None:
            raise Stopped
        self._file.write(block)
        self._file.flush()
        self._hash.update(block)
        self.size += len(block)

    def restart(self) -> None:
        """Nothing of it can be used."""
        if self._file is not None:
            self._file.truncate(0)
        self._hash = hashlib.sha256()
        self.size = 0

    def validator_of(self, uri: str) -> str:
        """What the source said when these bytes came from it."""
        try:
            noted, validator = self._note.read_text().split("\n")
        except (OSError, ValueError):
            return ""
        return validator if noted == uri else ""

    def note(self, uri: str, validator: str) -> None:
        self._note.write_text(f"{uri}\n{validator}")

    def leave(self) -> None:
        """Close it; what is empty is of no use to the next try."""
        if self.size == 0:
            self.discard()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        self._close()
        for path in (self.path, self._note):
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Limits:
    headroom: int
    """bytes that have to stay free on the disk"""
    patience: float
    """seconds without a byte from a source that cannot be reached"""


class _Patience:
    """Pauses that grow while nothing comes, until we say that the source is down."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._moved = time.monotonic()
        self._pause = _FIRST_PAUSE_S

    async def after(self, error: SourceBroke, *, has_moved: bool) -> None:
        if has_moved:
            self._moved, self._pause = time.monotonic(), _FIRST_PAUSE_S
        if time.monotonic() - self._moved >= self._seconds:
            raise OperationFailed(Reason.SOURCE_DOWN, str(error)) from error
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_S)


class Downloads:
    """Fetches artifacts into one folder, each digest by one job at a time."""

    def __init__(self, folder: Path, sources: Sources, threads: Threads, limits: Limits) -> None:
        self._folder = folder
        self._sources = sources
        self._threads = threads
        self._limits = limits
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def tidy(self) -> None:
        """Drop what nobody has asked for in a week."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()

    @contextlib.asynccontextmanager
    async def fetched(self, job: Job) -> AsyncIterator[Partial]:
        """The whole artifact, verified; kept when the block fails in a way that another try may cure."""
        async with self._locks[_key(job.command)]:
            partial = Partial(self._path(job.command))
            try:
                await self._threads.run(job.halt, partial.open, job.halt)
                job.bytes_reused = partial.size
                await self._fetch(job, partial)
                yield partial
                with contextlib.suppress(OSError):  # it has served its purpose
                    await self._threads.run(job.halt, partial.discard)
            except OperationFailed as why:
                if why.reason in _WORTHLESS:
                    partial.discard()
                raise
            finally:
                partial.leave()

    async def discard(self, command: Command) -> None:
        """Throw away what was kept, unless another job fetches the same artifact right now."""
        if not self._locks[_key(command)].locked():
            Partial(self._path(command)).discard()

    async def _fetch(self, job: Job, partial: Partial) -> None:
        """A partial file that proves wrong is thrown away once; the fresh one has the last word."""
        source = self._sources.find(job.command.uri)
        resumed = partial.size > 0
        await self._complete(job, partial, source)
        if resumed and not _is_wanted(job.command, partial):
            log.warning("download.partial_was_wrong", op_id=job.command.op_id)
            partial.restart()
            job.bytes_reused = 0
            await self._complete(job, partial, source)
        job.gauge.move(Phase.VERIFYING)
        if _is_wanted(job.command, partial):
            return
        found = partial.digest
        partial.discard()
        raise OperationFailed(Reason.BAD_DIGEST, f"Expected sha256 {_sha256(job.command)}, found {found}.")

    async def _complete(self, job: Job, partial: Partial, source: Source) -> None:
        """Ask the source again until it has delivered, or has been silent for too long."""
        patience = _Patience(self._limits.patience)
        while not _is_complete(job.command, partial):
            before = partial.size
            try:
                await self._read_on(job, partial, source)
            except SourceChanged:
                partial.restart()
            except SourceBroke as error:
                log.info("download.broke_off", op_id=job.command.op_id, error=str(error))
                await patience.after(error, has_moved=partial.size != before)
            else:
                return

    async def _read_on(self, job: Job, partial: Partial, source: Source) -> None:
        uri, size = job.command.uri, job.command.size
        job.gauge.move(Phase.DOWNLOADING, partial.size, size)
        self._require_space(size - partial.size if size else 0)
        validator = partial.validator_of(uri)
        may_resume = bool(validator or _sha256(job.command))
        async with source.open(partial.size if may_resume else 0, validator) as stream:
            if stream.start not in (0, partial.size):
                raise OperationFailed(Reason.DOWNLOAD_FAILED, "The source sent another part than was asked for.")
            if stream.start != partial.size:
                partial.restart()
                job.bytes_reused = 0
            self._require_space(max(stream.total - partial.size, 0))
            partial.note(uri, stream.validator)
            await self._pour(job, partial, stream)

    async def _pour(self, job: Job, partial: Partial, stream: Stream) -> None:
        """Read on while a thread writes: blocks gather by themselves, and all that came is written."""
        total = job.command.size or stream.total
        ahead: asyncio.Queue[bytes] = asyncio.Queue(_READ_AHEAD)
        reading = asyncio.create_task(_read_ahead(stream.blocks, ahead))
        try:
            while gathered := await _gathered(ahead):
                await self._write(job, partial, gathered, total)
            await reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _write(self, job: Job, partial: Partial, block: bytes, total: int) -> None:
        if job.command.size and partial.size + len(block) > job.command.size:
            partial.discard()
            raise OperationFailed(Reason.BAD_DIGEST, f"The source sends more than {job.command.size} bytes.")
        self._require_space(len(block))
        await self._threads.run(job.halt, partial.append, block)
        job.bytes_fetched += len(block)
        job.gauge.move(Phase.DOWNLOADING, partial.size, total)

    def _require_space(self, wanted: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if wanted + self._limits.headroom > free:
            raise OperationFailed(
                Reason.NO_DISK,
                f"{wanted} bytes to fetch and {self._limits.headroom} to keep free, but only {free} are left.",
            )

    def _path(self, command: Command) -> Path:
        return self._folder / f"{_key(command)}.part"


async def _read_ahead(blocks: AsyncIterator[bytes], ahead: asyncio.Queue[bytes]) -> None:
    """An empty block is the end, good or bad."""
    try:
        async for block in blocks:
            if block:
                await ahead.put(block)
    finally:
        reader = asyncio.current_task()
        if reader is not None and not reader.cancelling():
            await ahead.put(b"")


async def _gathered(ahead: asyncio.Queue[bytes]) -> bytes:
    """All that has come by now, at least one block; empty at the end."""
    gathered = bytearray(await ahead.get())
    while gathered and not ahead.empty():
        block = ahead.get_nowait()
        if not block:
            ahead.put_nowait(block)
            break
        gathered += block
    return bytes(gathered)


def _key(command: Command) -> str:
    """The digest; it comes over the wire, so whatever else it holds becomes a harmless name."""
    wanted = _sha256(command)
    if _DIGEST.fullmatch(wanted):
        return wanted
    return f"uri-{hashlib.sha256(f'{wanted} {command.uri}'.encode()).hexdigest()}"


def _sha256(command: Command) -> str:
    return command.sha256.removeprefix("sha256:").lower()


def _is_complete(command: Command, partial: Partial) -> bool:
    wanted = _sha256(command)
    return bool(wanted) and partial.size > 0 and partial.digest == wanted


def _is_wanted(command: Command, partial: Partial) -> bool:
    wanted = _sha256(command)
    return not wanted or partial.digest == wanted
