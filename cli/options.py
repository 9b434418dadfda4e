"""Options shared by the client commands."""

from pathlib import Path
from typing import Annotated

import typer

_PANEL = "Connection"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="NODESMITH_URL",
        help="Address of the API. Default: from the home folder of `nodesmith up`.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="NODESMITH_TOKEN",
        help="Token. Prefer the variable: other users of this machine can see arguments.",
        rich_help_panel=_PANEL,
        show_default=False,
        show_envvar=True,
    ),
]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="NODESMITH_HOME",
        help="Home folder of `nodesmith up`. Default: ./.nodesmith here or in a parent, else ~/.nodesmith.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name or id of the node.", show_default=False)]
OnNode = Annotated[str, typer.Option("--on", metavar="NODE", help="Name or id of the node.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Recorded in the audit trail.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs; fields are added, never removed.")]
