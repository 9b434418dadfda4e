"""What this node was asked to do and how it ended: it survives the agent and tells what a repeated command means."""

import asyncio
import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from enum import auto
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import Field

from agent.durable import Disk, write_durably
from agent.plan import Plan
from agent.progress import progress_of
from contracts.messages import Command, Message, Outcome, Progress, Result
from domain.operation import Phase, Reason
from domain.wire import WireEnum

log = structlog.stdlib.get_logger(__name__)

KEPT = timedelta(days=30)
"""outcomes and tombstones: longer than any sender goes on repeating a command"""
_SAFE_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Standing(WireEnum):
    RUNNING = auto()
    ENDED = auto()
    INTERRUPTED = auto()
    """the agent ended in the middle: nothing goes on by itself"""
    CANCELLED = auto()
    """the tombstone: never again for this operation"""
    UNKNOWN = auto()


class Entry(Message):
    """One operation, as this node remembers it."""

    op_id: str
    standing: Standing
    decision: int = 0
    command: Command = Command()
    outcome: Outcome | None = None
    plan: Plan | None = None
    """of a change that has begun: open until the end is written"""
    phase: Phase = Phase.UNKNOWN
    bytes_done: int = 0
    bytes_total: int = 0
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    def progress(self) -> Progress:
        """How far it was when this was written down."""
        return progress_of(self.command, self.decision, self.phase, self.bytes_done, self.bytes_total)

    def interrupted(self) -> "Entry":
        """What a running operation is once its agent has ended."""
        outcome = Outcome(
            op_id=self.op_id,
            backend=self.command.backend,
            family=self.command.family,
            decision=self.decision,
            result=Result.INTERRUPTED,
            reason=Reason.INTERRUPTED,
            bytes_fetched=self.bytes_done,
        )
        return self.model_copy(update={"standing": Standing.INTERRUPTED, "outcome": outcome})


Change = Callable[[Entry | None], Entry | None]
"""what is known of an operation -> what is to be known; None leaves it as it is"""


class Journal(Protocol):
    """`get` sees an entry once it outlives a power cut, which is when `put` and `change` return."""

    def get(self, op_id: str) -> Entry | None: ...
    async def put(self, entry: Entry) -> None: ...
    async def change(self, op_id: str, change: Change) -> None: ...
    def remember(self, entry: Entry) -> None:
        """Only in memory: an end that the disk does not take is still told to those who ask."""
        ...


class MemoryJournal:
    """For nodes that are only played."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def get(self, op_id: str) -> Entry | None:
        return self._entries.get(op_id)

    async def put(self, entry: Entry) -> None:
        self._entries[entry.op_id] = entry

    async def change(self, op_id: str, change: Change) -> None:
        if (entry := change(self.get(op_id))) is not None:
            await self.put(entry)

    def remember(self, entry: Entry) -> None:
        self._entries[entry.op_id] = entry


class DiskJournal:
    """One file an operation. All writes go through one thread, so they land in the order they were made."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._entries: dict[str, Entry] = {}
        self._unwritten: set[str] = set()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def load(self) -> list[Entry]:
        """Read everything; return what has to be settled: it ran when the agent ended, or its plan is still open."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*.json"):
            self._load_one(path)
        return [entry for entry in self._entries.values() if _is_unsettled(entry)]

    def get(self, op_id: str) -> Entry | None:
        return self._entries.get(op_id)

    async def put(self, entry: Entry) -> None:
        await self.change(entry.op_id, lambda _: entry)

    async def change(self, op_id: str, change: Change) -> None:
        """Applied to the newest entry, after all changes that were asked for before."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._apply, op_id, change)

    def remember(self, entry: Entry) -> None:
        self._entries[entry.op_id] = entry
        self._unwritten.add(entry.op_id)

    async def flush(self) -> None:
        """Write what is only in memory; raises while the disk does not take it."""
        for op_id in list(self._unwritten):
            await self.change(op_id, lambda known: known)

    def plans(self) -> list[Plan]:
        """All that are open."""
        return [entry.plan for entry in list(self._entries.values()) if entry.plan is not None]

    async def reap(self) -> None:
        """Forget what is too old to matter; asked for now and then by an agent that runs for months."""
        loop = asyncio.get_running_loop()
        for entry in [entry for entry in list(self._entries.values()) if _is_old(entry)]:
            del self._entries[entry.op_id]
            await loop.run_in_executor(self._writer, self._forget, entry.op_id)

    def close(self) -> None:
        self._writer.shutdown(wait=True)

    def _load_one(self, path: Path) -> None:
        try:
            entry = Entry.decode(path.read_bytes())
        except OSError:  # one bad file must not keep the agent from starting
            log.exception("journal.unreadable", file=path.name)
            return
        except ValueError:
            log.exception("journal.unreadable", file=path.name)
            path.rename(path.with_suffix(".unreadable"))
            return
        if _is_old(entry):
            path.unlink()
            return
        self._entries[entry.op_id] = entry

    def _apply(self, op_id: str, change: Change) -> None:
        """Write the disk first; a reader sees the earlier entry until then."""
        if (entry := change(self._entries.get(op_id))) is None:
            return
        self._write(entry)
        self._entries[op_id] = entry
        self._unwritten.discard(op_id)

    def _forget(self, op_id: str) -> None:
        (self._folder / _file_name(op_id)).unlink(missing_ok=True)

    def _write(self, entry: Entry) -> None:
        content = entry.model_dump_json(exclude_none=True).encode()
        write_durably(self._folder / _file_name(entry.op_id), content, disk=self._disk)


def _is_unsettled(entry: Entry) -> bool:
    """An interrupted plan that was undone has nothing done: it waits to be sent again."""
    if entry.plan is None:
        return entry.standing is Standing.RUNNING
    return entry.standing is not Standing.INTERRUPTED or bool(entry.plan.done)


def _is_old(entry: Entry) -> bool:
    if entry.plan is not None:
        return False
    return entry.standing is not Standing.RUNNING and datetime.now(UTC) - entry.at > KEPT


def _file_name(op_id: str) -> str:
    """An op_id comes over the wire: whatever it holds, it names a file of this folder."""
    safe = op_id if _SAFE_NAME.fullmatch(op_id) else hashlib.sha256(op_id.encode()).hexdigest()
    return f"{safe}.json"
