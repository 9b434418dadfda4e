"""All terminal output: text from nodes, galleries and backends cannot control the terminal.

Escape codes move the cursor, rename the window or hide text; bidirectional marks reorder it. Both are printed as their
code points. No other module of the command line prints directly (tests/test_architecture.py).
"""

import re
import sys

import typer

_COLOUR = re.compile("\x1b\\[[0-9;]{0,32}m")
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls except tab and new line; \x9b begins an escape code too
    "\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, and direction marks
    "\ud800-\udfff\U000e0000-\U000e007f]"  # surrogates and invisible tags
)


def safe(text: str) -> str:
    """Remove colours and replace control characters with their code points."""
    return _UNSAFE.sub(_code_point, _COLOUR.sub("", text))


def _code_point(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line, made safe for the terminal."""
    typer.echo(safe(text), err=err)


def print_raw(line: str) -> None:
    """Print a line unchanged, for --raw only."""
    typer.echo(line.encode(errors="surrogateescape"))


def write_json(text: str) -> None:
    """Print JSON and flush. It is ASCII, with every control character escaped."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
