"""Starts a program for the stack: `python -m nodesmith.runtime.process_start nodesmith.api.main`.

With `--wait-for-start` it loads the program, and runs it when its standard input is closed.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAIT_FOR_START = "--wait-for-start"
_PREFIXES = {"ControlSettings": "NODESMITH_", "AgentSettings": "NODESMITH_AGENT_"}


def main() -> None:
    """Load and run the program. Garbage collection is off during imports, where it takes a fifth of the time."""
    gc.disable()
    # structlog would load rich, which these processes without a terminal do not need: a tenth of the start time
    with hide_package("rich"):
        program = importlib.import_module(sys.argv[1])
    gc.freeze()
    gc.enable()
    if WAIT_FOR_START in sys.argv[2:]:
        sys.stdin.buffer.read()
    run(program.main)


def run(main: Callable[[], None]) -> None:
    """Run `main`; report an invalid setting as one sentence instead of a traceback."""
    from pydantic import ValidationError  # noqa: PLC0415 - loaded by now, with the program

    try:
        main()
    except ValidationError as error:
        prefix = _PREFIXES.get(error.title)
        if prefix is None:
            raise
        invalid = ((prefix + "__".join(map(str, each["loc"])).upper(), each["msg"]) for each in error.errors())
        problems = "; ".join(f"{name}: {why}" for name, why in invalid)
        raise SystemExit(f"nodesmith: {problems} (docs/reference/settings.md lists the settings)") from None


@contextmanager
def hide_package(package: str) -> Iterator[None]:
    """Make imports of the package fail in the block, as if it were not installed."""
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


if __name__ == "__main__":
    main()
