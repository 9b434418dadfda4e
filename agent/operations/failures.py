"""Failures of an operation on this node, each with its reason code."""

import errno

from nodesmith.domain.operation import Reason

_MAX_LENGTH = 8192
_CONTROLS = {code: f"\\x{code:02x}" for code in range(32) if chr(code) not in "\n\t"}
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class OperationFailed(Exception):
    """The operation failed, with a reason code for the control plane."""

    def __init__(self, reason: Reason, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Stopped(Exception):
    """The operation was stopped and must not change anything more."""


def from_os_error(error: OSError) -> OperationFailed:
    """Convert an OS error; any write can find the disk full."""
    reason = Reason.NO_DISK if is_full(error) else Reason.NODE_ERROR
    return OperationFailed(reason, error.strerror or str(error))


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def readable(text: str) -> str:
    """Escape and shorten untrusted text, such as names in an archive or the output of a backend."""
    text = text.encode(errors="backslashreplace").decode().translate(_CONTROLS)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH // 2]}\n...\n{text[-_MAX_LENGTH // 2 :]}"
