"""`nodesmith backends install|upgrade|rollback|rm`: one node is one operation, many nodes are one batch."""

from typing import Annotated, Any

import typer

from cli.batches import announce, show_plan
from cli.client import ApiClient, read, segment
from cli.grouped import Link, Targets, grouped
from cli.render import print_json, print_json_line
from cli.watch import watch
from cli.watch_batch import watch_batch
from contracts.batch_http import BatchAccepted, BatchPlan, BatchRequest
from contracts.messages import UpgradePolicy
from contracts.operation_http import InstallRequest, JobAccepted
from domain.operation import Kind

Name = Annotated[str, typer.Argument(metavar="NAME", help="Backend, as `backends ls` names it.", show_default=False)]
Version = Annotated[str, typer.Option(help="Default: the newest that is not marked broken.", show_default=False)]

_ROUTES = {Kind.INSTALL: "install", Kind.UPGRADE: "upgrade", Kind.ROLLBACK: "rollback", Kind.REMOVE: "remove"}


def register(backends: typer.Typer) -> None:
    for name, command in (("install", install), ("upgrade", upgrade), ("rollback", rollback), ("rm", remove)):
        backends.command(name)(grouped(command))


def install(
    name: Name,
    targets: Targets,
    *,
    version: Version = "",
    uri: Annotated[
        str, typer.Option(help="Fetch this archive instead of what a gallery has.", show_default=False)
    ] = "",
    sha256: Annotated[str, typer.Option(help="What the archive's digest must be.", show_default=False)] = "",
    force: Annotated[bool, typer.Option("--force", help="Install although it is there already.")] = False,
    start: Annotated[
        bool,
        typer.Option(
            "--start", help="Start it afterwards, also if it is installed already; nothing is started unless asked."
        ),
    ] = False,
    link: Link,
) -> None:
    """Install a backend on one node, on several, on those with certain labels, or on all.

    Returns as soon as it is durable. A node that is away gets it when it is back. With --watch the exit code is 0 when
    it succeeded on every node, 1 when it did not, 130 after Ctrl-C (it goes on).
    """
    what = {"version": version, "uri": uri, "sha256": sha256, "force": force, "start": start}
    _ask(link, targets, Kind.INSTALL, name, **what, name=name if uri else "")


def upgrade(
    name: Name,
    targets: Targets,
    *,
    version: Version = "",
    overlap: Annotated[bool, typer.Option("--overlap", help="Start the new one before the old one stops.")] = False,
    link: Link,
) -> None:
    """Upgrade a backend where it is installed: to the newest version, or to the one that is named.

    The old version serves until the new one is in place. Exit codes as for `install`.
    """
    policy = UpgradePolicy.OVERLAP if overlap else UpgradePolicy.RESTART
    _ask(link, targets, Kind.UPGRADE, name, version=version, upgrade_policy=policy)


def rollback(name: Name, targets: Targets, link: Link) -> None:
    """Go back to the version before, which is still on the node's disk. Exit codes as for `install`."""
    _ask(link, targets, Kind.ROLLBACK, name)


def remove(name: Name, targets: Targets, link: Link) -> None:
    """Remove a backend. A node that is away is waited for, for as long as it takes. Exit codes as for `install`."""
    _ask(link, targets, Kind.REMOVE, name)


def _ask(link: Link, targets: Targets, kind: Kind, backend: str, **what: Any) -> None:
    """Not validated here: the API says what is wrong, in the words it has for everybody."""
    request = BatchRequest.model_construct(kind=kind, backend=backend, **targets.said(), **what)
    with link.api() as api:
        _send(api, request, wait=targets.wait, as_json=link.as_json)


def _send(api: ApiClient, request: BatchRequest, *, wait: bool, as_json: bool) -> None:
    if request.dry_run:
        plan = read(BatchPlan, api.post("/api/batches", request))
        return print_json(plan) if as_json else show_plan(plan)
    if len(request.nodes) == 1:
        return _ask_one(api, request, wait=wait, as_json=as_json)
    accepted = read(BatchAccepted, api.post_once("/api/batches", request))
    if wait:
        announce(accepted, as_json=as_json, is_watched=True)
        raise typer.Exit(watch_batch(api, accepted.batch_id, as_json=as_json, patient=True))
    return announce(accepted, as_json=as_json)


def _ask_one(api: ApiClient, request: BatchRequest, *, wait: bool, as_json: bool) -> None:
    """One node is one operation, whose own story can be watched."""
    body = InstallRequest.model_construct(
        **{name: getattr(request, name) for name in InstallRequest.model_fields if name in request.model_fields_set}
    )
    path = f"/api/nodes/{segment(request.nodes[0])}/backends/{_ROUTES[request.kind]}"
    accepted = read(JobAccepted, api.post_once(path, body))
    if wait:
        raise typer.Exit(_watch(api, accepted, as_json=as_json))
    return print_json(accepted) if as_json else typer.echo(announcement(accepted))


def _watch(api: ApiClient, accepted: JobAccepted, *, as_json: bool) -> int:
    if as_json:
        print_json_line({"type": "accepted", **accepted.model_dump(mode="json")})
    else:
        typer.echo(f"operation {accepted.jobID}{_how(accepted)}")
    return watch(api, accepted.jobID, as_json=as_json, patient=True)


def _how(accepted: JobAccepted) -> str:
    if accepted.repeated:
        return " (this request was accepted before)"
    return " (was running already)" if accepted.joined else ""


def announcement(accepted: JobAccepted) -> str:
    begun = "The same operation was running already" if accepted.joined else "Accepted"
    if accepted.repeated:
        begun = "This request was accepted before"
    return f"{begun}: {accepted.jobID}\n  watch it:  nodesmith ops watch {accepted.jobID}"
