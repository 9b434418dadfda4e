"""The start of a process, as the stack starts it: `python -m runtime.begin api.main`.

With `--when-told` it loads the program, and begins it when its standard input ends.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WHEN_TOLD = "--when-told"


def main() -> None:
    """Nothing of what a start imports is garbage: looking for some meanwhile takes a fifth of it."""
    gc.disable()
    # structlog loads rich for a terminal that these processes do not have: a tenth of their start
    with missing("rich"):
        begun = importlib.import_module(sys.argv[1])
    gc.freeze()
    gc.enable()
    if WHEN_TOLD in sys.argv[2:]:
        sys.stdin.buffer.read()
    begun.main()


@contextmanager
def missing(package: str) -> Iterator[None]:
    """Who imports it meanwhile finds it not installed."""
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


if __name__ == "__main__":
    main()
