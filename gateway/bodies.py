"""Bodies of requests: in memory up to a limit, in a file beyond it."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from nodesmith.gateway.answers import Refusal, unavailable

_MIB = 1024 * 1024
_PART = 256 * 1024
START = 64 * 1024
"""bytes at the beginning of a body that are kept in memory, to find the model"""


@dataclass(frozen=True)
class BodyLimits:
    buffer: int = 8 * _MIB
    """the largest body that is kept in memory, and so may be sent to a second replica"""
    memory: int = 256 * _MIB
    """memory of all bodies together; beyond it small bodies go to files too"""
    largest: int = 1024 * _MIB
    """the largest body that is accepted"""
    disk: int = 10 * 1024 * _MIB
    """files of all bodies together"""


class BodyStore:
    """Counts what all bodies use."""

    def __init__(self, folder: Path | None = None, limits: BodyLimits | None = None) -> None:
        self.folder = folder
        self.limits = limits or BodyLimits()
        self.memory = 0
        self.disk = 0

    def check_length(self, length: int) -> None:
        if length > self.limits.largest:
            text = f"The body has {length} bytes; at most {self.limits.largest} are accepted."
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", text)


class Body:
    """One body, which grows until the request is complete. `close` gives its memory or its file back."""

    def __init__(self, store: BodyStore) -> None:
        self._store = store
        self._buffer = bytearray()
        self._file: BinaryIO | None = None
        self.size = 0

    @property
    def is_spooled(self) -> bool:
        return self._file is not None

    @property
    def content(self) -> bytearray:
        """The whole body, or the first 64 KiB of one in a file."""
        return self._buffer

    def add(self, data: bytes) -> None:
        self.size += len(data)
        limits = self._store.limits
        self._store.check_length(self.size)
        if self._file is None and (self.size > limits.buffer or self._store.memory + len(data) > limits.memory):
            self._spool()
        if self._file is None:
            self._buffer += data
            self._store.memory += len(data)
        else:
            self._write(self._file, data)

    def parts(self) -> Iterator[bytes]:
        """The body from its beginning, in parts that fit into memory."""
        if self._file is None:
            yield bytes(self._buffer)
            return
        self._file.seek(0)
        while part := self._file.read(_PART):
            yield part

    def close(self) -> None:
        self._store.memory -= len(self._buffer)
        self._buffer = bytearray()
        if self._file is not None:
            self._store.disk -= self.size
            self._file.close()
            self._file = None
        self.size = 0

    def _spool(self) -> None:
        # unlinked from the start: a killed gateway leaves no file behind
        self._file = tempfile.TemporaryFile(dir=self._store.folder)  # noqa: SIM115 - closed by `close`
        self._file.write(self._buffer)
        self._store.disk += len(self._buffer)
        self._store.memory -= max(0, len(self._buffer) - START)
        del self._buffer[START:]

    def _write(self, file: BinaryIO, data: bytes) -> None:
        self._store.disk += len(data)
        if self._store.disk > self._store.limits.disk:
            self._store.disk -= len(data)
            self.size -= len(data)
            raise unavailable("spool_full", "The gateway holds too many large bodies.")
        if (room := START - len(self._buffer)) > 0:
            self._buffer += data[:room]
            self._store.memory += min(room, len(data))
        try:
            file.write(data)
        except OSError as error:
            raise unavailable("spool_full", f"The gateway cannot store the body: {error.strerror}.") from error
