"""Memory that the agent needed for an operation goes back to the machine: backends have better use for it."""

import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """Only the C library of most Linux systems has it; the others do without."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def give_back() -> None:
    if (trim := _trim()) is not None:
        trim(0)
