"""`nodesmith models`: lists, stops, unloads and deletes the models of nodes."""

from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.client import read, segment
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import OnNode, Reason
from nodesmith.cli.output.render import Column, print_json, show_list
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.models import ModelBody, ModelStopBody, ModelStopView, NodeModel, UnloadResult, UnloadView
from nodesmith.contracts.http.shared import Message

Name = Annotated[str, typer.Argument(metavar="NAME", help="Model, as in `models ls`.", show_default=False)]

_NOTHING = "No model is running. `nodesmith backends install NAME --on NODE --start` starts a backend."

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
    app.add_typer(models, name="models", help="List running models; stop, unload, delete.")


def list_models(
    *,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="Only on this node.", show_default=False)
    ] = None,
    link: Link,
) -> None:
    """List running models, as the nodes report them now. Without --on, a slow node is left out."""
    with link.api() as api:
        path = f"/api/nodes/{segment(on)}/models" if on else "/api/nodes/models"
        models = [read(NodeModel, entry) for entry in api.get(path)]
    show_list(models, COLUMNS, as_json=link.as_json, empty_message=_NOTHING)


def stop(
    name: Name,
    *,
    on: OnNode,
    replica: Annotated[int, typer.Option("--replica", min=0, help="Number of the process.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Kill at once, without a grace period.")] = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Stop one process of a model, and wait until it has ended."""
    body = ModelStopBody.model_construct(model_name=name, replica_index=replica, force=force, reason=reason or "")
    with link.api() as api:
        stopped = read(ModelStopView, api.post(f"/api/nodes/{segment(on)}/models/stop", body))
    print_json(stopped) if link.as_json else print_line(f"{stopped.message}.")


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
    """Unload a model on a node, or with --all on every node that has it; its files stay.

    With --all, failed nodes are listed, the others are still unloaded, and the exit code is 1.
    """
    if bool(on) == everywhere:
        raise typer.BadParameter("Give either --on NODE or --all.")
    body = ModelBody.model_construct(model_name=name, reason=reason or "")
    if on:
        _post_action(link, f"/api/nodes/{segment(on)}/models/unload", body, f"{name} is unloaded on {on}.")
    else:
        _unload_everywhere(link, body)


def _unload_everywhere(link: Link, body: ModelBody) -> None:
    with link.api() as api:
        done = read(UnloadView, api.post("/api/v1/models/unload", body))
    failed = [node for node in done.nodes if node.result in (UnloadResult.FAILED, UnloadResult.UNKNOWN)]
    if link.as_json:
        print_json(done)
    else:
        print_line(done.message)
        for node in failed:
            print_line(f"{node.node_name}: {node.warning}", err=True)
    if failed:
        raise typer.Exit(1)


def remove(name: Name, *, on: OnNode, reason: Reason = None, link: Link) -> None:
    """Unload a model and delete its files from a node."""
    body = ModelBody.model_construct(model_name=name, reason=reason or "")
    _post_action(link, f"/api/nodes/{segment(on)}/models/delete", body, f"{name} is deleted from {on}.")


def _post_action(link: Link, path: str, body: ModelBody, sentence: str) -> None:
    with link.api() as api:
        done = read(Message, api.post(path, body))
    print_json(done) if link.as_json else print_line(sentence)
