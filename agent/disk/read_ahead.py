"""Decompresses in a second thread, ahead of the unpacker, as `tar` does by a second process."""

import queue
import threading
from types import TracebackType
from typing import IO, Self

_BLOCK = 256 * 1024
_AHEAD = 4
"""blocks that wait for the unpacker; what a decompression bomb can occupy"""


class ReadAhead:
    """Reads a stream in a thread of its own; errors are raised in the reader's thread, in their order."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._blocks: queue.Queue[bytes | BaseException] = queue.Queue(_AHEAD)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decompress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the thread; it puts at most one more block, for which the queue then has room."""
        self._is_closed.set()
        while not self._blocks.empty():
            self._blocks.get()
        self._thread.join()

    def read(self) -> bytes:
        """Return the next block, empty at the end and only there; not to be called after that or after an error."""
        block = self._blocks.get()
        if isinstance(block, BaseException):
            raise block
        return block

    def _run(self) -> None:
        try:
            while not self._is_closed.is_set():
                block = self._packed.read(_BLOCK)
                self._blocks.put(block)
                if not block:
                    return
        except BaseException as error:  # noqa: BLE001 - raised by `read`
            self._blocks.put(error)
