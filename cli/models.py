"""`nodesmith models`: what runs on the nodes, and ending it."""

from typing import Annotated

import typer
from rich.markup import escape

from cli.client import read, segment
from cli.grouped import Link, grouped
from cli.options import OnNode, Reason
from cli.render import Column, print_json, show_list
from contracts.http import Message
from contracts.models_http import ModelBody, ModelStopBody, ModelStopView, NodeModel, Unloading, UnloadView

Name = Annotated[str, typer.Argument(metavar="NAME", help="Model, as `models ls` names it.", show_default=False)]

_NOTHING = "Nothing runs. `nodesmith backends install NAME --on NODE --start` starts a backend."

COLUMNS: list[Column[NodeModel]] = [
    Column("NODE", lambda model: escape(model.node_name)),
    Column("MODEL", lambda model: escape(model.model_name), may_wrap=True),
    Column("REPLICA", lambda model: str(model.replica_index), right=True),
    Column("BACKEND", lambda model: escape(f"{model.backend_type or ''} {model.version}".strip())),
    Column("ADDRESS", lambda model: escape(model.address)),
]


def register(app: typer.Typer) -> None:
    models = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    for name, command in (("ls", list_models), ("stop", stop), ("unload", unload), ("rm", remove)):
        models.command(name)(grouped(command))
    app.add_typer(models, name="models", help="List what runs on the nodes; stop, unload, delete.")


def list_models(
    *,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="Only on this node.", show_default=False)
    ] = None,
    link: Link,
) -> None:
    """List what runs, as the nodes themselves say now. Without --on, a healthy node that is slow is left out."""
    with link.api() as api:
        path = f"/api/nodes/{segment(on)}/models" if on else "/api/nodes/models"
        models = [read(NodeModel, entry) for entry in api.get(path)]
    show_list(models, COLUMNS, as_json=link.as_json, nothing=_NOTHING)


def stop(
    name: Name,
    *,
    on: OnNode,
    replica: Annotated[int, typer.Option("--replica", min=0, help="Which of its processes.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="At once, without seconds of grace.")] = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """End one process of a model, and wait for its end."""
    body = ModelStopBody.model_construct(model_name=name, replica_index=replica, force=force, reason=reason or "")
    with link.api() as api:
        stopped = read(ModelStopView, api.post(f"/api/nodes/{segment(on)}/models/stop", body))
    print_json(stopped) if link.as_json else typer.echo(f"{stopped.message}.")


def unload(
    name: Name,
    *,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="Name or id of the node.", show_default=False)
    ] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="On every node that has it.")] = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Free what a model holds on a node, or with --all on every node that has it; its files stay.

    With --all, a node that fails is named and the others go on; the exit code is 1 then.
    """
    if bool(on) == everywhere:
        raise typer.BadParameter("Say where: --on NODE or --all, and only one of them.")
    body = ModelBody.model_construct(model_name=name, reason=reason or "")
    if on:
        _order(link, f"/api/nodes/{segment(on)}/models/unload", body, f"{name} is unloaded on {on}.")
    else:
        _unload_everywhere(link, body)


def _unload_everywhere(link: Link, body: ModelBody) -> None:
    with link.api() as api:
        done = read(UnloadView, api.post("/api/models/unload", body))
    failed = [node for node in done.nodes if node.result in (Unloading.FAILED, Unloading.UNKNOWN)]
    if link.as_json:
        print_json(done)
    else:
        typer.echo(done.message)
        for node in failed:
            typer.echo(f"{node.node_name}: {node.warning}", err=True)
    if failed:
        raise typer.Exit(1)


def remove(name: Name, *, on: OnNode, reason: Reason = None, link: Link) -> None:
    """Unload a model and delete its files from a node."""
    body = ModelBody.model_construct(model_name=name, reason=reason or "")
    _order(link, f"/api/nodes/{segment(on)}/models/delete", body, f"{name} is deleted from {on}.")


def _order(link: Link, path: str, body: ModelBody, sentence: str) -> None:
    with link.api() as api:
        done = read(Message, api.post(path, body))
    print_json(done) if link.as_json else typer.echo(sentence)
