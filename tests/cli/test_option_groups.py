"""Option groups: every API command takes the same connection options."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from nodesmith.cli.main import COMMANDS, _load
from nodesmith.cli.option_groups import grouped

PROCESSES = {"up", "down", "status", "api", "worker", "gateway", "agent", "secrets", "simulate", "demo"}
LOCAL = {"keys init", "backend pack", "galleries keygen", "galleries sign", "galleries rotate"}


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
    output = CliRunner().invoke(app, ["--help"]).output
    assert all(words in output for words in ("Paint it.", "--front", "Of the words.", "--back", "--twice"))


def test_every_api_command_takes_connection_and_json_options() -> None:
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
