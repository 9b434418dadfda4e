"""`nodesmith backends`: what there is, and putting it on a node."""

from typing import Annotated

import typer
from rich.markup import escape

from cli.client import ApiClient, read, segment
from cli.connection import connect
from cli.options import Home, Json, Token, Url
from cli.render import Column, make_console, print_json, print_json_line, show, size, table
from cli.watch import watch
from contracts.http import BackendEntry, InstallRequest, JobAccepted

COLUMNS: list[Column[BackendEntry]] = [
    Column("NAME", lambda entry: escape(entry.name)),
    Column("VERSION", lambda entry: escape(entry.version)),
    Column("SIZE", lambda entry: size(entry.size), right=True),
    Column("DESCRIPTION", lambda entry: escape(entry.description), may_wrap=True),
    Column("GALLERY", lambda entry: escape(entry.gallery), from_width=100),
    Column("SHA256", lambda entry: entry.sha256[:16], from_width=120),
]


def register(app: typer.Typer) -> None:
    backends = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    backends.command("ls")(list_backends)
    backends.command("install")(install)
    app.add_typer(backends, name="backends", help="List the backends there are; install one on a node.")


def list_backends(*, url: Url = None, token: Token = None, home: Home = None, as_json: Json = False) -> None:
    """List the backends of all galleries, newest version first."""
    with connect(url, token, home) as api:
        entries = [read(BackendEntry, entry) for entry in api.get("/api/backends")["backends"]]
    if as_json:
        return print_json(entries)
    console = make_console()
    return show(console, table(entries, COLUMNS, console.width) if entries else "The galleries are empty.")


def install(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Backend, as `backends ls` names it.")],
    *,
    node: Annotated[str, typer.Option("--on", metavar="NODE", help="Name or id of the node.", show_default=False)],
    version: Annotated[str, typer.Option(help="Default: the newest that is not marked broken.")] = "",
    uri: Annotated[str, typer.Option(help="Fetch this archive (.tar.gz) instead of what a gallery has.")] = "",
    sha256: Annotated[str, typer.Option(help="What the archive's digest must be.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Install although it is there already.")] = False,
    on_drained: Annotated[bool, typer.Option("--on-drained", help="On a node that is drained, on purpose.")] = False,
    wait: Annotated[bool, typer.Option("--watch", help="Stay until it ends; Ctrl-C leaves it running.")] = False,
    url: Url = None,
    token: Token = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Install a backend on a node.

    Returns as soon as the operation is durable. A node that is away gets it when it is back. With --watch the exit code
    is 0 when the install succeeded, 1 when it did not, 130 after Ctrl-C (the operation goes on).
    """
    # Not validated here: the API says what is wrong, in the words it has for everybody.
    request = InstallRequest.model_construct(
        backend=name,
        name=name if uri else "",
        version=version,
        uri=uri,
        sha256=sha256,
        force=force,
        on_drained=on_drained,
    )
    with connect(url, token, home) as api:
        accepted = read(JobAccepted, api.post_once(f"/api/nodes/{segment(node)}/backends/install", request))
        if wait:
            raise typer.Exit(_watch(api, accepted, as_json=as_json))
    if as_json:
        return print_json(accepted)
    return typer.echo(announcement(accepted))


def _watch(api: ApiClient, accepted: JobAccepted, *, as_json: bool) -> int:
    if as_json:
        print_json_line({"type": "accepted", **accepted.model_dump(mode="json")})
    else:
        typer.echo(f"operation {accepted.jobID}" + (" (was running already)" if accepted.joined else ""))
    return watch(api, accepted.jobID, as_json=as_json, patient=True)


def announcement(accepted: JobAccepted) -> str:
    begun = "The same operation was running already" if accepted.joined else "Accepted"
    return f"{begun}: {accepted.jobID}\n  watch it:  nodesmith ops watch {accepted.jobID}"
