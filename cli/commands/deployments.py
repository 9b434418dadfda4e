"""`nodesmith models deploy|apply|diff|scale|show|explain|logs`: models that the scheduler keeps loaded."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.commands.model_files import documents, file_of
from nodesmith.cli.option_groups import Link, given, grouped
from nodesmith.cli.options import Reason
from nodesmith.cli.output.render import (
    Column,
    ago,
    colored,
    facts,
    make_console,
    print_json,
    show,
    show_list,
    size,
    table,
)
from nodesmith.cli.output.terminal import print_line, print_raw
from nodesmith.contracts.http.deployments import (
    DeploymentDetail,
    DeploymentDiff,
    DeploymentRequest,
    DeploymentView,
    NodeVerdict,
    ScaleBody,
)
from nodesmith.contracts.http.models import MOST_LINES
from nodesmith.contracts.http.replicas import ReplicaView
from nodesmith.domain.deployment import parse_memory, parse_replicas
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.replica import process_key

Name = Annotated[str, typer.Argument(metavar="NAME", help="Model, as in `models ls`.", show_default=False)]
YamlFile = Annotated[
    Path, typer.Option("--file", "-f", metavar="FILE", help="YAML, one deployment per document.", show_default=False)
]
RANGE = typer.Option("--replicas", metavar="MIN..MAX", help="2, 1..4, 0..4, or 1.. for no limit.", show_default=False)

EMPTY = "No model is deployed. `nodesmith models deploy NAME --backend BACKEND` deploys one."


def replicas_text(model: DeploymentView) -> str:
    """Loaded replicas of those wanted: 2/2..4."""
    if model.spread_all:
        return f"{model.loaded} (each node)"
    wanted = f"{model.min_replicas}"
    if model.max_replicas != model.min_replicas:
        wanted += f"..{model.max_replicas or ''}"
    return f"{model.loaded}/{wanted}"


COLUMNS: list[Column[DeploymentView]] = [
    Column("MODEL", lambda model: escape(model.name), may_wrap=True),
    Column("STATUS", lambda model: colored(model.status)),
    Column("REPLICAS", replicas_text),
    Column("CALLS", lambda model: str(model.in_flight), right=True),
    Column("BACKEND", lambda model: escape(model.backend)),
    Column("MEMORY", lambda model: size(model.memory) if model.memory else "", right=True, from_width=90),
    Column("REVISION", lambda model: str(model.revision), right=True, from_width=90),
    Column("WHERE", lambda model: escape(model.selector), from_width=120, may_wrap=True),
]
REPLICA_COLUMNS: list[Column[ReplicaView]] = [
    Column("NODE", lambda replica: escape(replica.node_name)),
    Column("REPLICA", lambda replica: str(replica.index), right=True),
    Column("STATE", lambda replica: colored(replica.state) if replica.is_reachable else "node away"),
    Column("REVISION", lambda replica: str(replica.revision), right=True),
    Column("CALLS", lambda replica: str(replica.in_flight), right=True),
    Column("SINCE", lambda replica: ago(replica.changed_at)),
    Column("ADDRESS", lambda replica: escape(replica.address), from_width=100),
]
VERDICT_COLUMNS: list[Column[NodeVerdict]] = [
    Column("NODE", lambda node: escape(node.node_name)),
    Column("VERDICT", lambda node: escape(node.verdict)),
    Column("WHY", lambda node: escape(node.detail), may_wrap=True),
]


def register(models: typer.Typer) -> None:
    for name, command in (
        ("show", show_model),
        ("deploy", deploy),
        ("apply", apply),
        ("diff", diff),
        ("scale", scale),
        ("explain", explain),
        ("logs", logs),
    ):
        models.command(name)(grouped(command))


def show_model(name: Name, *, link: Link) -> None:
    """Show a deployment and its replicas."""
    with link.api() as api:
        print_deployment(api.deployments.get(name), as_json=link.as_json)


def deploy(
    name: Name,
    *,
    backend: Annotated[str, typer.Option("--backend", help="Backend that serves it.", show_default=False)],
    file: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="URI", help="URI#sha256=HEX of a file; may be repeated.", show_default=False),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", help="Argument of the backend; {file} is its file.", show_default=False),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Variable.", show_default=False)
    ] = None,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Of one replica, such as 12GiB.")] = "0",
    replicas: Annotated[str, RANGE] = "1",
    spread: Annotated[bool, typer.Option("--spread", help="One replica on each matching node.")] = False,
    where: Annotated[str, typer.Option("--where", metavar="SELECTOR", help="Nodes that may run it.")] = "",
    ready_path: Annotated[str, typer.Option("--ready-path", help="Answers 2xx when ready.")] = "/health",
    force: Annotated[bool, typer.Option("--force", help="Even if no node can run it now.")] = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Deploy a model, or change it; the scheduler loads it. A change of what is loaded is a new revision."""
    low, high = (None, None) if spread else parse_replicas(replicas)
    request = DeploymentRequest.model_validate(
        {
            "backend": backend,
            "files": [file_of(each) for each in file or ()],
            "arguments": arg or [],
            "environment": dict(_variable(each) for each in env or ()),
            "memory": parse_memory(memory),
            "ready_path": ready_path,
            **given(min_replicas=low, max_replicas=high, spread_all=spread, selector=where, force=force, reason=reason),
        }
    )
    with link.api() as api:
        deployed = api.deployments.set(name, request)
    print_json(deployed) if link.as_json else _print_deployed(deployed)


def apply(*, file: YamlFile, reason: Reason = "", link: Link) -> None:
    """Deploy the models of a YAML file; what is equal already stays."""
    wanted = documents(file)
    with link.api() as api:
        for name, request in wanted:
            deployed = api.deployments.set(name, request.model_copy(update=given(reason=reason)))
            print_json(deployed) if link.as_json else _print_deployed(deployed)


def diff(*, file: YamlFile, link: Link) -> None:
    """Show what `apply` would change; the exit code is 1 if anything."""
    wanted = documents(file)
    with link.api() as api:
        found = [api.deployments.diff(name, request) for name, request in wanted]
    if link.as_json:
        print_json(found)
    else:
        for each in found:
            _print_diff(each)
    if any(each.changes for each in found):
        raise typer.Exit(1)


def scale(
    name: Name,
    replicas: Annotated[str, typer.Argument(metavar="MIN..MAX", help="2, 1..4, 0..4, or 1.. for no limit.")],
    *,
    reason: Reason = "",
    link: Link,
) -> None:
    """Change how many replicas run."""
    low, high = parse_replicas(replicas)
    with link.api() as api:
        scaled = api.deployments.scale(name, ScaleBody(min_replicas=low, max_replicas=high, reason=reason))
    print_json(scaled) if link.as_json else _print_deployed(scaled)


def explain(name: Name, *, link: Link) -> None:
    """Show where the next replica would go, why nowhere else, and what the scheduler would do now."""
    with link.api() as api:
        found = api.deployments.explain(name)
    if link.as_json:
        return print_json(found)
    console = make_console()
    show(console, table(found.nodes, VERDICT_COLUMNS, console.width) if found.nodes else "No node is registered.")
    for action in found.actions or ["The scheduler has nothing to do."]:
        print_line(action)
    return None


def logs(
    name: Name,
    *,
    on: Annotated[str, typer.Option("--on", metavar="NODE", help="Replica on this node.", show_default=False)] = "",
    replica: Annotated[int, typer.Option("--replica", min=0, help="Number of the replica.")] = 0,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=MOST_LINES, help="Print at most this many.")] = 200,
    link: Link,
) -> None:
    """Print the last lines of a replica's output; without --on, of the first replica."""
    with link.api() as api:
        node = on or _first_node(api.deployments.get(name))
        page = api.nodes.logs(node, process_key(name, replica), lines=lines)
    if link.as_json:
        return print_json(page)
    for line in page.lines:
        print_raw(line)
    return None


def print_deployment(model: DeploymentDetail, *, as_json: bool) -> None:
    if as_json:
        return print_json(model)
    console = make_console()
    pairs = [
        ("model", escape(model.name)),
        ("status", colored(model.status)),
        ("why", escape(model.unsatisfiable_why)),
        ("replicas", replicas_text(model)),
        ("backend", escape(model.backend)),
        ("files", escape("\n".join(f"{file.name}  {file.uri}" for file in model.files))),
        ("arguments", escape(" ".join(model.arguments))),
        ("environment", escape(" ".join(model.environment))),
        ("memory", size(model.memory) if model.memory else ""),
        ("where", escape(model.selector)),
        ("revision", str(model.revision)),
    ]
    show(console, facts(pairs))
    if model.replicas:
        print_line("")
        show(console, table(model.replicas, REPLICA_COLUMNS, console.width))
    return None


def list_deployments(*, link: Link) -> None:
    with link.api() as api:
        found = api.deployments.list().items
    show_list(found, COLUMNS, as_json=link.as_json, empty_message=EMPTY)


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise InvalidRequest(f"--env {name[:40]}: write NAME=VALUE.")
    return name, value


def _print_deployed(model: DeploymentDetail) -> None:
    print_line(f"{model.name}: revision {model.revision}, {replicas_text(model)} replicas loaded.")


def _print_diff(found: DeploymentDiff) -> None:
    if not found.changes:
        return print_line(f"{found.name}: nothing changes.")
    print_line(f"{found.name}: {'is new' if found.is_new else f'becomes revision {found.revision}'}.")
    for change in found.changes:
        print_line(f"  {change.field}: {change.before} -> {change.after}")
    return None


def _first_node(model: DeploymentDetail) -> str:
    if not model.replicas:
        raise InvalidRequest(f"{model.name} has no replica; `nodesmith models explain {model.name}` says why.")
    return model.replicas[0].node_id
