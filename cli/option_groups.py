"""Option groups: options declared once as the fields of a dataclass, for every command that takes the group."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from nodesmith.cli.connection import connect
from nodesmith.cli.options import Home, Json, Reason, Token, Url
from nodesmith.client import Client


@dataclass(frozen=True)
class Link:
    """The connection to the API, and the output format."""

    url: Url = None
    token: Token = None
    home: Home = None
    as_json: Json = False

    def api(self) -> Client:
        return connect(self.url, self.token, self.home)


@dataclass(frozen=True)
class Targets:
    """The target nodes of a change, its limits, and the reason."""

    on: Annotated[
        list[str] | None,
        typer.Option("--on", metavar="NODE", help="Name or id of a node; may be repeated.", show_default=False),
    ] = None
    where: Annotated[
        str, typer.Option("--where", metavar="SELECTOR", help="All nodes with these labels.", show_default=False)
    ] = ""
    everywhere: Annotated[bool, typer.Option("--all", help="All nodes.")] = False
    on_drained: Annotated[bool, typer.Option("--on-drained", help="Include drained nodes.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan for each node; start nothing.")] = False
    max_parallel: Annotated[
        int | None, typer.Option(min=0, help="Nodes at a time; 0 = all at once.  [default: 20]")
    ] = None
    max_failures: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many.  [default: 3; for installs: never]", show_default=False),
    ] = None
    count_attempts: Annotated[
        bool, typer.Option("--count-attempts", help="--max-failures counts failed attempts, not failed nodes.")
    ] = False
    max_attempts: Annotated[
        int | None, typer.Option(min=1, help="Attempts per node before it fails.  [default: 10]")
    ] = None
    wait: Annotated[bool, typer.Option("--watch", help="Wait until it ends; Ctrl-C leaves it running.")] = False
    reason: Reason = ""

    def request_fields(self) -> dict[str, Any]:
        """Return the options as fields of a request; the API sets the defaults of the others."""
        if sum(map(bool, (self.on, self.where, self.everywhere))) != 1:
            raise typer.BadParameter("Give exactly one of --on NODE, --where SELECTOR and --all.")
        return given(
            nodes=self.on,
            selector=self.where,
            everywhere=self.everywhere,
            on_drained=self.on_drained,
            max_parallel=self.max_parallel,
            max_failures=self.max_failures,
            count_attempts=self.count_attempts,
            max_attempts=self.max_attempts,
            reason=self.reason,
        )


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given, as fields of a request; the API sets the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None and value is not False and value != ""}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command that takes groups: typer sees their fields as options, the command receives the groups."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if dataclasses.is_dataclass(parameter.annotation)
    }
    flat = list(_flat(signature, groups))

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        filled = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**values, **filled)

    wrapper.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return wrapper


def _flat(signature: inspect.Signature, groups: dict[str, Any]) -> Iterator[inspect.Parameter]:
    for name, parameter in signature.parameters.items():
        if name not in groups:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        hints = typing.get_type_hints(groups[name], include_extras=True)
        for field in dataclasses.fields(groups[name]):
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )
