"""Returns memory that an operation used to the system, so that backends can use it."""

import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`, or None where the C library does not have it."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def release_memory() -> None:
    if (trim := _trim()) is not None:
        trim(0)
