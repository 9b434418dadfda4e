"""docs/reference/cli.md: every command with its arguments and options, from the typer application."""

from collections.abc import Iterator
from typing import Any

from nodesmith.cli.main import COMMANDS, _load
from tests.reference.markdown import table

_COMMON = ("--url", "--token", "--home", "--json", "--help")

_INTRODUCTION = """\
# Command line

Generated from `cli/main.py` by `make reference`. A test fails when this page is out of date.

Exit codes: 0 done; 1 refused, or the operation did not succeed; 2 wrong usage; 3 no answer from the API; 130 Ctrl-C.

Commands that ask the API also take these options:
"""


def page() -> str:
    commands = [found for name in COMMANDS for found in _leaves(f"nodesmith {name}", _load(name))]
    client = next(command for name, command in commands if name == "nodesmith nodes ls")
    common = table(("option", "meaning"), (record for record in _records(client) if _is_common(record)))
    return "\n".join([_INTRODUCTION, *common, "", *(line for found in commands for line in _section(*found))])


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield name, command
    for each, loaded in below.items():
        yield from _leaves(f"{name} {each}", loaded)


def _section(name: str, command: Any) -> Iterator[str]:
    records = _records(command)
    usage = " ".join(piece for piece in command.collect_usage_pieces(_context(command)) if piece != "[OPTIONS]")
    yield f"## `{f'{name} {usage}'.strip()}`"
    yield ""
    yield _paragraphs(command.help or command.short_help or "")
    if any(_is_common(record) and record[0] != "`--help`" for record in records):
        yield "\nCommon options: " + ", ".join(
            record[0].split(" ")[0].rstrip("`") + "`" for record in records if _is_common(record)
        )
    rest = [record for record in records if not _is_common(record)]
    if rest:
        yield ""
        yield from table(("argument or option", "meaning"), rest)
    yield ""


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _records(command: Any) -> list[tuple[str, str]]:
    context = _context(command)
    found = (each.get_help_record(context) for each in command.get_params(context))
    return [(f"`{record[0]}`", record[1]) for record in found if record]


def _is_common(record: tuple[str, str]) -> bool:
    return record[0].strip("`").split(" ")[0] in _COMMON


def _context(command: Any) -> Any:
    return command.context_class(command, info_name="nodesmith")
