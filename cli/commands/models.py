"""`nodesmith models`: lists deployed and running models; stops, unloads and removes them."""

from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.commands import deployments
from nodesmith.cli.option_groups import Link, given, grouped
from nodesmith.cli.options import OnNode, Reason
from nodesmith.cli.output.render import Column, print_json, show_list
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.models import ModelStopBody, NodeModel, UnloadResult, UnloadView
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
    models.command("ls")(grouped(list_models))
    deployments.register(models)
    for name, command in (("stop", stop), ("unload", unload), ("rm", remove)):
        models.command(name)(grouped(command))
    app.add_typer(models, name="models", help="Deploy models, scale and explain them; stop, unload, remove.")


def list_models(
    *,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="Processes on this node.", show_default=False)
    ] = None,
    running: Annotated[bool, typer.Option("--running", help="Processes, as all nodes report them now.")] = False,
    link: Link,
) -> None:
    """List deployed models; with --on or --running the processes, deployed or not, as the nodes report them now.

    With --running, a node that does not answer within two seconds is left out.
    """
    if not on and not running:
        return deployments.list_deployments(link=link)
    with link.api() as api:
        models = api.models.list(node=on or "").items
    return show_list(models, COLUMNS, as_json=link.as_json, empty_message=_NOTHING)


def stop(
    name: Name,
    *,
    on: OnNode,
    replica: Annotated[int, typer.Option("--replica", min=0, help="Number of the process.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Kill at once, without a grace period.")] = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Stop one process of a model, and wait until it has ended."""
    order = ModelStopBody.model_construct(model_name=name, replica_index=replica, **given(force=force, reason=reason))
    with link.api() as api:
        stopped = api.models.stop(on, order)
    print_json(stopped) if link.as_json else print_line(f"{stopped.message}.")


def unload(
    name: Name,
    *,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="Name or id of the node.", show_default=False)
    ] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="On every node that has it.")] = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Unload a model on a node, or with --all on every node that has it; its files stay.

    With --all, failed nodes are listed, the others are still unloaded, and the exit code is 1.
    """
    if bool(on) == everywhere:
        raise typer.BadParameter("Give either --on NODE or --all.")
    with link.api() as api:
        if on:
            done = api.models.unload(name, node=on, reason=reason)
            return _print_result(done, f"{name} is unloaded on {on}.", as_json=link.as_json)
        return _print_unloaded(api.models.unload_everywhere(name, reason=reason), as_json=link.as_json)


def _print_unloaded(done: UnloadView, *, as_json: bool) -> None:
    failed = [node for node in done.nodes if node.result in (UnloadResult.FAILED, UnloadResult.UNKNOWN)]
    if as_json:
        print_json(done)
    else:
        print_line(done.message)
        for node in failed:
            print_line(f"{node.node_name}: {node.warning}", err=True)
    if failed:
        raise typer.Exit(1)


def remove(
    name: Name,
    *,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="Only the files on this node.", show_default=False)
    ] = None,
    reason: Reason = "",
    link: Link,
) -> None:
    """Remove a deployment: its replicas are unloaded. With --on, unload a model and delete its files from a node."""
    with link.api() as api:
        if on:
            done = api.models.delete(name, node=on, reason=reason)
            return _print_result(done, f"{name} is deleted from {on}.", as_json=link.as_json)
        removed = api.deployments.delete(name, reason=reason)
    return _print_result(removed, f"{name} is removed; its replicas are unloaded.", as_json=link.as_json)


def _print_result(done: Message, sentence: str, *, as_json: bool) -> None:
    print_json(done) if as_json else print_line(sentence)
