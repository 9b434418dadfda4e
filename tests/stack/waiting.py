"""Waits for an effect of another process."""

import time
from collections.abc import Callable

from tests.deadlines import HANGS_S


def until(condition: Callable[[], bool], within: float = HANGS_S) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
