"""Progress and outcomes of operations: published by nodes, distributed by operation in the control plane."""

import asyncio
import contextlib
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import structlog
from nats.aio.msg import Msg

from nodesmith.bus.connection import Bus
from nodesmith.bus.report_rate import ReportRate
from nodesmith.bus.signed_messages import Signed
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import Outcome, Progress
from nodesmith.domain.errors import NodesmithError

log = structlog.stdlib.get_logger(__name__)

Key = tuple[str, str]
"""node and operation, as tokens of the subject; the NATS server guarantees the node"""
Report = TypeVar("Report", Progress, Outcome)

_MOST_REMEMBERED = 20_000


class NodeReports:
    """Publishes progress and outcomes of a node."""

    def __init__(self, bus: Bus, node_id: str) -> None:
        self._bus = bus
        self._node_id = node_id

    async def progress(self, progress: Progress) -> None:
        """Publish progress; it is lost when the connection is down."""
        stamped = progress.model_copy(update={"node_id": self._node_id})
        await self._bus.publish(subjects.progress(self._node_id, progress.op_id), stamped.encode())

    async def outcome(self, outcome: Outcome) -> None:
        """Publish an outcome as soon as the connection is up; a lost one would cost extra requests."""
        await self._bus.wait_up()
        envelope = signed_outcome(self._bus, self._node_id, outcome)
        await self._bus.publish(subjects.outcome(self._node_id, outcome.op_id), envelope)


def signed_outcome(bus: Bus, node_id: str, outcome: Outcome) -> bytes:
    """Sign an outcome with the node's key; it names the node, so it cannot be used for another node."""
    stamped = outcome.model_copy(update={"node_id": node_id, "signed": ""})
    return bus.seal(Signed.OUTCOME, node_id, stamped.encode())


class Reports:
    """Reports of one operation for one follower; only the newest progress is kept."""

    def __init__(self) -> None:
        self._updated = asyncio.Event()
        self._progress: Progress | None = None
        self._outcome: Outcome | None = None
        self._decision = 0

    async def next(self, within: float) -> Progress | Outcome | None:
        """Return the next report; None after `within` seconds, or at once after a reconnect: then ask the node."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._updated.wait(), within)
        self._updated.clear()
        report = self._outcome or self._progress
        self._progress = self._outcome = None
        return report

    def add_progress(self, progress: Progress) -> None:
        self._decision = max(self._decision, progress.decision)
        self._progress = progress
        self._updated.set()

    def add_outcome(self, outcome: Outcome) -> None:
        """Store an outcome unless it belongs to an earlier decision."""
        if outcome.decision >= self._decision:
            self._outcome = outcome
            self._updated.set()

    def wake(self) -> None:
        """Wake the reader, because a report may have been missed."""
        self._updated.set()


class ReportHub:
    """Receives the reports of all nodes with one subscription per kind, and distributes them by operation.

    The bus reader calls listeners directly, so they must return quickly.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._attached: defaultdict[Key, set[Reports]] = defaultdict(set)
        self._newest: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        self._rate = ReportRate()
        self._progress_listeners: list[Callable[[Progress], None]] = []
        self._outcome_listeners: list[Callable[[Outcome], None]] = []

    async def start(self) -> None:
        """Subscribe; call this once per process."""
        self._bus.on_reconnect(self._wake_all)
        await self._bus.subscribe(subjects.EVERY_PROGRESS, self._on_progress)
        await self._bus.subscribe(subjects.EVERY_OUTCOME, self._on_outcome)

    def on_progress(self, listener: Callable[[Progress], None]) -> None:
        """Call `listener` with every new progress report of every operation."""
        self._progress_listeners.append(listener)

    def on_unclaimed_outcome(self, listener: Callable[[Outcome], None]) -> None:
        """Call `listener` with outcomes of operations that have no follower in this process."""
        self._outcome_listeners.append(listener)

    @contextlib.asynccontextmanager
    async def attach(self, node_id: str, op_id: str) -> AsyncIterator[Reports]:
        """Receive the reports of one operation of one node until the block ends."""
        key = (subjects.token(node_id), subjects.token(op_id))
        reports = Reports()
        self._attached[key].add(reports)
        try:
            yield reports
        finally:
            self._attached[key].discard(reports)
            if not self._attached[key]:
                del self._attached[key]

    async def _on_progress(self, message: Msg) -> None:
        key = _key_of(message.subject)
        attached = self._attached.get(key, ())
        if not (attached or self._progress_listeners) or not self._rate.admits(("progress", key[0])):
            return
        progress = _read(Progress, message.data, message.subject, key)
        if progress is None or not self._is_newer(key, progress):
            return
        for reports in attached:
            reports.add_progress(progress)
        for listener in self._progress_listeners:
            listener(progress)

    async def _on_outcome(self, message: Msg) -> None:
        key = _key_of(message.subject)
        if not (key in self._attached or self._outcome_listeners) or not self._rate.admits(("outcome", key[0])):
            return
        outcome = await self._verified(message, key)
        if outcome is None:
            return
        attached = self._attached.get(key, ())
        for reports in attached:
            reports.add_outcome(outcome)
        for listener in () if attached else self._outcome_listeners:
            listener(outcome)

    async def _verified(self, message: Msg, key: Key) -> Outcome | None:
        """Return the outcome; None if the node did not sign it or its key cannot be read: the node is asked later."""
        node_id, _ = key
        try:
            payload = await self._bus.signatures.open(node_id, Signed.OUTCOME, node_id, message.data)
        except NodesmithError as error:
            log.warning("outcome.dropped", subject=message.subject, error=error.message)
            return None
        outcome = _read(Outcome, payload, message.subject, key)
        is_signed = payload is not message.data
        return outcome.model_copy(update={"signed": message.data.decode()}) if outcome and is_signed else outcome

    def _is_newer(self, key: Key, progress: Progress) -> bool:
        """Whether the progress is newer than the last one; LocalAI workers send no numbers, so theirs always is."""
        mark = (progress.decision, progress.seq)
        if mark != (0, 0) and mark <= self._newest.get(key, (0, 0)):
            return False
        self._newest[key] = mark
        self._newest.move_to_end(key)
        if len(self._newest) > _MOST_REMEMBERED:
            self._newest.popitem(last=False)
        return True

    def _wake_all(self) -> None:
        for attached in self._attached.values():
            for reports in attached:
                reports.wake()


def _key_of(subject: str) -> Key:
    parts = subject.split(".")  # nodes.<id>.backend.install.<op>.progress
    return parts[1], parts[4]


def _read(kind: type[Report], payload: bytes, subject: str, key: Key) -> Report | None:
    """Parse a report; None if it is unreadable or does not match the node and operation of its subject."""
    try:
        report = kind.decode(payload)
    except ValueError:
        log.warning("nats.unreadable", subject=subject, bytes=len(payload))
        return None
    node_id, op_id = key
    if subjects.token(report.op_id) != op_id or subjects.token(report.node_id or node_id) != node_id:
        log.warning("nats.foreign", subject=subject, op_id=report.op_id, node_id=report.node_id)
        return None
    return report if report.node_id else report.model_copy(update={"node_id": node_id})
