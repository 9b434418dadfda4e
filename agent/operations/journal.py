"""The journal of operations: survives restarts, so that a repeated command gets the same answer."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from enum import auto
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import Field

from nodesmith.agent.disk.durable_files import Disk, write_durably
from nodesmith.agent.operations.change_plan import ChangePlan
from nodesmith.agent.operations.order_floors import OrderFloors
from nodesmith.agent.operations.progress import progress_of
from nodesmith.contracts.nats.messages import Command, Outcome, Progress, Result
from nodesmith.contracts.nats.wire import Message
from nodesmith.domain.operation import Phase, Reason
from nodesmith.domain.wire_enum import WireEnum

log = structlog.stdlib.get_logger(__name__)

KEPT = timedelta(days=30)
"""retention of outcomes and tombstones: longer than any sender repeats a command"""
_SAFE_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


class JournalStatus(WireEnum):
    RUNNING = auto()
    ENDED = auto()
    INTERRUPTED = auto()
    """the agent stopped during the operation; it does not continue on its own"""
    CANCELLED = auto()
    """tombstone: this operation must never run again"""
    UNKNOWN = auto()


class JournalEntry(Message):
    """The record of one operation."""

    op_id: str
    standing: JournalStatus
    decision: int = 0
    command: Command = Command()
    outcome: Outcome | None = None
    plan: ChangePlan | None = None
    """plan of a change that has begun; open until the outcome is written"""
    phase: Phase = Phase.UNKNOWN
    bytes_done: int = 0
    bytes_total: int = 0
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    def progress(self) -> Progress:
        """Return the progress at the time of this entry."""
        return progress_of(self.command, self.decision, self.phase, self.bytes_done, self.bytes_total)

    def interrupted(self) -> "JournalEntry":
        """Return this running entry as interrupted, because its agent has ended."""
        outcome = Outcome(
            op_id=self.op_id,
            backend=self.command.backend,
            family=self.command.family,
            decision=self.decision,
            result=Result.INTERRUPTED,
            reason=Reason.INTERRUPTED,
            bytes_fetched=self.bytes_done,
        )
        return self.model_copy(update={"standing": JournalStatus.INTERRUPTED, "outcome": outcome})


Change = Callable[[JournalEntry | None], JournalEntry | None]
"""maps the current entry to the new one; None leaves it unchanged"""


class Journal(Protocol):
    """Storage of entries; `get` returns an entry once it is durable, which is when `put` and `change` return."""

    def get(self, op_id: str) -> JournalEntry | None: ...
    def newest_iat(self, lock: str) -> int:
        """Return the issue time of the newest order begun under that lock."""
        ...

    async def put(self, entry: JournalEntry) -> None: ...
    async def change(self, op_id: str, change: Change) -> None: ...
    def keep_in_memory(self, entry: JournalEntry) -> None:
        """Store an outcome in memory only, so that it can be queried although the disk is full."""
        ...


class MemoryJournal:
    """Journal of a simulated node."""

    def __init__(self) -> None:
        self._entries: dict[str, JournalEntry] = {}
        self._newest: dict[str, int] = {}

    def get(self, op_id: str) -> JournalEntry | None:
        return self._entries.get(op_id)

    def newest_iat(self, lock: str) -> int:
        return self._newest.get(lock, 0)

    async def put(self, entry: JournalEntry) -> None:
        self._entries[entry.op_id] = entry
        lock, iat = entry.command.lock, entry.command.iat
        self._newest[lock] = max(self.newest_iat(lock), iat)

    async def change(self, op_id: str, change: Change) -> None:
        if (entry := change(self.get(op_id))) is not None:
            await self.put(entry)

    def keep_in_memory(self, entry: JournalEntry) -> None:
        self._entries[entry.op_id] = entry


class DiskJournal:
    """Stores one file per operation. A single thread writes, so writes keep their order."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._entries: dict[str, JournalEntry] = {}
        self._unwritten: set[str] = set()
        self._begun: dict[str, int] = {}
        self._floors = OrderFloors(folder.parent / "orders.json", self._disk)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def load(self) -> list[JournalEntry]:
        """Read all entries; return those to settle: running when the agent ended, or with an open plan."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._floors.load()
        for path in self._folder.glob("*.json"):
            self._load_one(path)
        return [entry for entry in self._entries.values() if _is_unsettled(entry)]

    def get(self, op_id: str) -> JournalEntry | None:
        return self._entries.get(op_id)

    def newest_iat(self, lock: str) -> int:
        return max(self._begun.get(lock, 0), self._floors.get(lock))

    def newest_of_all(self) -> int:
        """Return the newest known issue time, a lower bound for the clock when the control plane is unreachable."""
        return max(*self._begun.values(), self._floors.newest(), 0)

    async def raise_floors(self, newest: Mapping[str, int]) -> None:
        """Apply the control plane's record of ended orders, because this disk may have been restored from a backup."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._floors.raise_to, newest)

    async def put(self, entry: JournalEntry) -> None:
        await self.change(entry.op_id, lambda _: entry)

    async def change(self, op_id: str, change: Change) -> None:
        """Apply `change` to the newest entry, after all earlier changes."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._apply, op_id, change)

    def keep_in_memory(self, entry: JournalEntry) -> None:
        self._remember(entry)
        self._unwritten.add(entry.op_id)

    async def flush(self) -> None:
        """Write entries that are only in memory; raises while the disk is full."""
        for op_id in list(self._unwritten):
            await self.change(op_id, lambda known: known)

    def plans(self) -> list[ChangePlan]:
        """Return all open plans."""
        return [entry.plan for entry in list(self._entries.values()) if entry.plan is not None]

    async def prune(self) -> None:
        """Delete entries older than the retention; called periodically by housekeeping."""
        loop = asyncio.get_running_loop()
        old = [entry for entry in list(self._entries.values()) if _is_old(entry)]
        await self.raise_floors(dict(self._begun) if old else {})
        for entry in old:
            del self._entries[entry.op_id]
            await loop.run_in_executor(self._writer, self._forget, entry.op_id)

    def close(self) -> None:
        self._writer.shutdown(wait=True)

    def _load_one(self, path: Path) -> None:
        try:
            entry = JournalEntry.decode(path.read_bytes())
        except OSError:  # one bad file must not keep the agent from starting
            log.exception("journal.unreadable", file=path.name)
            return
        except ValueError:
            log.exception("journal.unreadable", file=path.name)
            path.rename(path.with_suffix(".unreadable"))
            return
        if _is_old(entry):
            self._floors.raise_to({entry.command.lock: entry.command.iat})
            path.unlink()
            return
        self._remember(entry)

    def _apply(self, op_id: str, change: Change) -> None:
        """Write to disk first; readers see the earlier entry until then."""
        if (entry := change(self._entries.get(op_id))) is None:
            return
        self._write(entry)
        self._remember(entry)
        self._unwritten.discard(op_id)

    def _remember(self, entry: JournalEntry) -> None:
        self._entries[entry.op_id] = entry
        lock, iat = entry.command.lock, entry.command.iat
        self._begun[lock] = max(self._begun.get(lock, 0), iat)

    def _forget(self, op_id: str) -> None:
        (self._folder / _file_name(op_id)).unlink(missing_ok=True)

    def _write(self, entry: JournalEntry) -> None:
        content = entry.model_dump_json(exclude_none=True).encode()
        write_durably(self._folder / _file_name(entry.op_id), content, disk=self._disk)


def _is_unsettled(entry: JournalEntry) -> bool:
    """A reverted plan has no steps done and needs no settling; it waits for the command to be sent again."""
    if entry.plan is None:
        return entry.standing is JournalStatus.RUNNING
    return entry.standing is not JournalStatus.INTERRUPTED or bool(entry.plan.done)


def _is_old(entry: JournalEntry) -> bool:
    if entry.plan is not None:
        return False
    return entry.standing is not JournalStatus.RUNNING and datetime.now(UTC) - entry.at > KEPT


def _file_name(op_id: str) -> str:
    """Map an untrusted op_id to a safe file name in this folder."""
    safe = op_id if _SAFE_NAME.fullmatch(op_id) else hashlib.sha256(op_id.encode()).hexdigest()
    return f"{safe}.json"
