"""The start of a process, as the stack starts it: `python -m runtime.begin api.main`.

With `--when-told` it loads the program, and begins it when its standard input ends.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WHEN_TOLD = "--when-told"
_PREFIXES = {"ControlSettings": "NODESMITH_", "AgentSettings": "NODESMITH_AGENT_"}


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
    run(begun.main)


def run(main: Callable[[], None]) -> None:
    """A setting that cannot be read is told in a sentence: where we noticed it helps nobody."""
    from pydantic import ValidationError  # noqa: PLC0415 - loaded by now, with the program

    try:
        main()
    except ValidationError as error:
        prefix = _PREFIXES.get(error.title)
        if prefix is None:
            raise
        wrong = ((prefix + "__".join(map(str, each["loc"])).upper(), each["msg"]) for each in error.errors())
        told = "; ".join(f"{name}: {why}" for name, why in wrong)
        raise SystemExit(f"nodesmith: {told} (docs/operations.md lists the settings)") from None


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
