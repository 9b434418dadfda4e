"""What a node reports of its operations: published by the node, shared out by operation on the other side."""

import asyncio
import contextlib
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import structlog
from nats.aio.msg import Msg

from bus.connection import Bus
from contracts import subjects
from contracts.messages import Outcome, Progress

log = structlog.stdlib.get_logger(__name__)

Key = tuple[str, str]
"""node and operation, as tokens of the subject: the server vouches for the first"""
Report = TypeVar("Report", Progress, Outcome)

_REMEMBERED = 20_000


class NodeReports:
    """The node's end: says how far an operation is, and how it ended."""

    def __init__(self, bus: Bus, node_id: str) -> None:
        self._bus = bus
        self._node_id = node_id

    async def progress(self, progress: Progress) -> None:
        """A gauge: lost when the link is down."""
        said = progress.model_copy(update={"node_id": self._node_id})
        await self._bus.publish(subjects.progress(self._node_id, progress.op_id), said.encode())

    async def outcome(self, outcome: Outcome) -> None:
        """Waits for the link: an outcome that nobody hears costs a round of questions."""
        said = outcome.model_copy(update={"node_id": self._node_id})
        await self._bus.wait_up()
        await self._bus.publish(subjects.outcome(self._node_id, outcome.op_id), said.encode())


class Reports:
    """What a node says of one operation while somebody is attached; only the newest progress is kept."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._progress: Progress | None = None
        self._outcome: Outcome | None = None
        self._decision = 0

    async def next(self, within: float) -> Progress | Outcome | None:
        """The next report; None after `within` seconds of silence, or at once after a reconnect: ask the node."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), within)
        self._news.clear()
        report = self._outcome or self._progress
        self._progress = self._outcome = None
        return report

    def take_progress(self, progress: Progress) -> None:
        self._decision = max(self._decision, progress.decision)
        self._progress = progress
        self._news.set()

    def take_outcome(self, outcome: Outcome) -> None:
        """The end of an earlier try is not the end of this one."""
        if outcome.decision >= self._decision:
            self._outcome = outcome
            self._news.set()

    def nudge(self) -> None:
        """Something may have been missed."""
        self._news.set()


class ReportHub:
    """The control plane's end: one subscription a kind for the whole process, shared out by operation.

    Listeners are called by the bus reader itself, so they only take note and return.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._attached: defaultdict[Key, set[Reports]] = defaultdict(set)
        self._newest: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        self._progress_listeners: list[Callable[[Progress], None]] = []
        self._outcome_listeners: list[Callable[[Outcome], None]] = []

    async def start(self) -> None:
        """Begin to listen; once in a process."""
        self._bus.on_reconnect(self._nudge_all)
        await self._bus.subscribe(subjects.EVERY_PROGRESS, self._on_progress)
        await self._bus.subscribe(subjects.EVERY_OUTCOME, self._on_outcome)

    def on_progress(self, listener: Callable[[Progress], None]) -> None:
        """Hear every progress tick that is news, of every operation."""
        self._progress_listeners.append(listener)

    def on_unclaimed_outcome(self, listener: Callable[[Outcome], None]) -> None:
        """Hear the outcomes of operations that nobody in this process is attached to."""
        self._outcome_listeners.append(listener)

    @contextlib.asynccontextmanager
    async def attach(self, node_id: str, op_id: str) -> AsyncIterator[Reports]:
        """Hear one operation of one node until the block ends."""
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
        if not attached and not self._progress_listeners:
            return
        progress = _read(Progress, message, key)
        if progress is None or not self._is_news(key, progress):
            return
        for reports in attached:
            reports.take_progress(progress)
        for listener in self._progress_listeners:
            listener(progress)

    async def _on_outcome(self, message: Msg) -> None:
        key = _key_of(message.subject)
        outcome = _read(Outcome, message, key)
        if outcome is None:
            return
        attached = self._attached.get(key, ())
        for reports in attached:
            reports.take_outcome(outcome)
        for listener in () if attached else self._outcome_listeners:
            listener(outcome)

    def _is_news(self, key: Key, progress: Progress) -> bool:
        """LocalAI's workers number nothing: theirs is always news."""
        mark = (progress.decision, progress.seq)
        if mark != (0, 0) and mark <= self._newest.get(key, (0, 0)):
            return False
        self._newest[key] = mark
        self._newest.move_to_end(key)
        if len(self._newest) > _REMEMBERED:
            self._newest.popitem(last=False)
        return True

    def _nudge_all(self) -> None:
        for attached in self._attached.values():
            for reports in attached:
                reports.nudge()


def _key_of(subject: str) -> Key:
    parts = subject.split(".")  # nodes.<id>.backend.install.<op>.progress
    return parts[1], parts[4]


def _read(kind: type[Report], message: Msg, key: Key) -> Report | None:
    """The report, if it is readable and of the node and operation whose subject it came on."""
    try:
        report = kind.decode(message.data)
    except ValueError:
        log.warning("nats.unreadable", subject=message.subject, bytes=len(message.data))
        return None
    node_id, op_id = key
    if subjects.token(report.op_id) != op_id or subjects.token(report.node_id or node_id) != node_id:
        log.warning("nats.foreign", subject=message.subject, op_id=report.op_id, node_id=report.node_id)
        return None
    return report if report.node_id else report.model_copy(update={"node_id": node_id})
