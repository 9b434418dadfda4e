"""How an operation ends badly on this node: each failure knows its reason on the wire."""

import errno

from domain.operation import Reason

_LONGEST = 8192
_CONTROLS = {code: f"\\x{code:02x}" for code in range(32) if chr(code) not in "\n\t"}
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class OperationFailed(Exception):
    """The operation failed, for a reason that has a word on the wire."""

    def __init__(self, reason: Reason, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Stopped(Exception):
    """The operation was told to stop: nothing more may change."""


def from_os_error(error: OSError) -> OperationFailed:
    """The disk can fill up at any write."""
    reason = Reason.NO_DISK if is_full(error) else Reason.NODE_ERROR
    return OperationFailed(reason, error.strerror or str(error))


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def readable(words: str) -> str:
    """Words of strangers, such as names in an archive or the output of a backend, as every reader can hold them."""
    text = words.encode(errors="backslashreplace").decode().translate(_CONTROLS)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}\n...\n{text[-_LONGEST // 2 :]}"
