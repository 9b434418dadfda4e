"""Following a batch, or the output of a backend, by repeated requests. This module decides; the transports send."""

from collections.abc import Iterator

from nodesmith.client.back_off import BackOff, LinkLost
from nodesmith.client.calls import Call
from nodesmith.client.resources.batches import batch_call
from nodesmith.client.resources.nodes import logs_call
from nodesmith.contracts.http.batches import BatchDetail
from nodesmith.contracts.http.models import LONGEST_WAIT_S, MOST_LINES, LogsPage
from nodesmith.domain.batch import ENDED_BATCHES

BATCH_EVERY_S = 0.5

BatchUpdate = BatchDetail | LinkLost
LogsUpdate = LogsPage | LinkLost


class BatchFollower:
    """What is known of one batch."""

    def __init__(self, batch_id: str, *, is_known_to_exist: bool) -> None:
        self.call: Call[BatchDetail] = batch_call(batch_id)
        self.back_off = BackOff(is_known_to_exist=is_known_to_exist)
        self._batch: BatchDetail | None = None

    @property
    def has_ended(self) -> bool:
        return self._batch is not None and self._batch.state in ENDED_BATCHES

    def take(self, batch: BatchDetail) -> Iterator[BatchUpdate]:
        known, self._batch = self._batch, batch
        self.back_off.reset()
        if batch != known:
            yield batch


class LogsFollower:
    """How far the output of a backend has been read. The API holds a request open until there is more."""

    def __init__(self, node: str, backend: str, *, lines: int) -> None:
        self.call: Call[LogsPage] = logs_call(node, backend, lines=lines)
        self.back_off = BackOff(is_known_to_exist=False)
        self._place = (node, backend)
        self._is_first = True

    def take(self, page: LogsPage) -> Iterator[LogsUpdate]:
        is_first, self._is_first = self._is_first, False
        self.call = logs_call(*self._place, lines=MOST_LINES, cursor=page.cursor, wait_s=LONGEST_WAIT_S)
        self.back_off.reset()
        if page.lines or is_first:
            yield page
