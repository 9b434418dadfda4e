"""Options that belong together are declared once, and every command of the API takes the same ones."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from cli.grouped import grouped
from cli.main import COMMANDS, _load

PROCESSES = {"up", "down", "status", "api", "worker", "agent", "secrets", "simulate", "demo"}
LOCAL = {"backend pack"}


@dataclass(frozen=True)
class Colours:
    front: Annotated[str, typer.Option("--front", help="Of the words.")] = "black"
    back: Annotated[str | None, typer.Option("--back")] = None


def test_a_group_is_taken_option_by_option_and_handed_over_as_one() -> None:
    def paint(name: Annotated[str, typer.Argument()], colours: Colours, *, twice: bool = False) -> None:
        """Paint it."""
        typer.echo(json.dumps([name, colours.front, colours.back, twice]))

    app = typer.Typer()
    app.command()(grouped(paint))
    assert json.loads(CliRunner().invoke(app, ["door"]).output) == ["door", "black", None, False]
    painted = CliRunner().invoke(app, ["door", "--back", "red", "--twice", "--front", "blue"])
    assert json.loads(painted.output) == ["door", "blue", "red", True]
    told = CliRunner().invoke(app, ["--help"]).output
    assert all(words in told for words in ("Paint it.", "--front", "Of the words.", "--back", "--twice"))


def test_every_command_that_asks_the_api_takes_where_it_is_and_json() -> None:
    options = dict(commands())
    assert len(options) > 30
    lacking = {name: {"url", "token", "home", "as_json"} - taken for name, taken in options.items()}
    assert {name: missing for name, missing in lacking.items() if missing} == {}


def commands() -> Iterator[tuple[str, set[str]]]:
    for name in COMMANDS.keys() - PROCESSES:
        loaded = _load(name)
        for below, command in getattr(loaded, "commands", {"": loaded}).items():
            if (full := f"{name} {below}".strip()) not in LOCAL:
                yield full, {parameter.name for parameter in command.params}
