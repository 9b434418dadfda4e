"""Waits for processes that are not children of the test, without polling."""

import os
import select


def assert_ends(*pids: int, within: float = 10.0) -> None:
    """Assert that each process ends in time; a zombie counts as ended."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([descriptor], [], [], within)[0], f"process {pid} lives on"
        finally:
            os.close(descriptor)
