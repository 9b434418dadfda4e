"""`nodesmith backends install|upgrade|rollback|rm`: starts an operation for one node, a batch for several."""

from typing import Annotated, Any

import typer

from nodesmith.cli.commands.batches import announce, show_plan
from nodesmith.cli.option_groups import Link, Targets, given, grouped
from nodesmith.cli.output.render import print_json, print_json_line
from nodesmith.cli.output.terminal import print_line
from nodesmith.cli.output.watch import watch
from nodesmith.cli.output.watch_batch import watch_batch
from nodesmith.client import Client
from nodesmith.contracts.http.batches import BatchRequest
from nodesmith.contracts.http.operations import InstallRequest, OperationAccepted, OperationBody
from nodesmith.contracts.nats.messages import UpgradePolicy
from nodesmith.domain.kinds import Kind

Name = Annotated[str, typer.Argument(metavar="NAME", help="Backend, as in `backends ls`.", show_default=False)]
Version = Annotated[str, typer.Option(help="Default: the newest version not marked broken.", show_default=False)]


def register(backends: typer.Typer) -> None:
    for name, command in (("install", install), ("upgrade", upgrade), ("rollback", rollback), ("rm", remove)):
        backends.command(name)(grouped(command))


def install(
    name: Name,
    targets: Targets,
    *,
    version: Version = "",
    uri: Annotated[str, typer.Option(help="Fetch this archive instead of a gallery's.", show_default=False)] = "",
    sha256: Annotated[str, typer.Option(help="Expected digest of the archive.", show_default=False)] = "",
    force: Annotated[bool, typer.Option("--force", help="Install even if it is already installed.")] = False,
    start: Annotated[
        bool,
        typer.Option(
            "--start", help="Start it afterwards, even if it was already installed. By default nothing is started."
        ),
    ] = False,
    link: Link,
) -> None:
    """Install a backend on one node, on several, on those with certain labels, or on all.

    Returns as soon as the request is durable. An offline node installs it when it is back. With --watch the exit code
    is 0 if it succeeded on every node, 1 if it did not, 130 after Ctrl-C (the work continues).
    """
    what = {"version": version, "uri": uri, "sha256": sha256, "force": force, "start": start}
    _request_change(link, targets, Kind.INSTALL, name, **what, name=name if uri else "")


def upgrade(
    name: Name,
    targets: Targets,
    *,
    version: Version = "",
    overlap: Annotated[bool, typer.Option("--overlap", help="Start the new version before the old one stops.")] = False,
    link: Link,
) -> None:
    """Upgrade a backend where it is installed, to the newest version or the given one.

    The old version serves until the new one is in place. Exit codes as for `install`.
    """
    policy = UpgradePolicy.OVERLAP if overlap else None
    _request_change(link, targets, Kind.UPGRADE, name, version=version, upgrade_policy=policy)


def rollback(name: Name, targets: Targets, link: Link) -> None:
    """Return to the previous version, which is still on the node's disk. Exit codes as for `install`."""
    _request_change(link, targets, Kind.ROLLBACK, name)


def remove(name: Name, targets: Targets, link: Link) -> None:
    """Remove a backend. Waits for an offline node without a time limit. Exit codes as for `install`."""
    _request_change(link, targets, Kind.REMOVE, name)


def _request_change(link: Link, targets: Targets, kind: Kind, backend: str, **what: Any) -> None:
    """Send the request without local validation: the API reports errors in the same words to every client."""
    request = BatchRequest.model_construct(kind=kind, backend=backend, **targets.request_fields(), **given(**what))
    with link.api() as api:
        if targets.dry_run:
            plan = api.batches.plan(request)
            return print_json(plan) if link.as_json else show_plan(plan)
        return _send(api, request, wait=targets.wait, as_json=link.as_json)


def _send(api: Client, request: BatchRequest, *, wait: bool, as_json: bool) -> None:
    if len(request.nodes) == 1:
        return _send_single(api, request, wait=wait, as_json=as_json)
    accepted = api.batches.create(request)
    if wait:
        announce(accepted, as_json=as_json, is_watched=True)
        raise typer.Exit(watch_batch(api, accepted.batch_id, as_json=as_json, is_known_to_exist=True))
    return announce(accepted, as_json=as_json)


def _send_single(api: Client, request: BatchRequest, *, wait: bool, as_json: bool) -> None:
    """Start one operation for a single node, so that its own progress can be watched."""
    fields = {name: getattr(request, name) for name in InstallRequest.model_fields if name in request.model_fields_set}
    accepted = api.operations.create(OperationBody.model_construct(kind=request.kind, node=request.nodes[0], **fields))
    if wait:
        raise typer.Exit(_watch(api, accepted, as_json=as_json))
    return print_json(accepted) if as_json else print_line(announcement(accepted))


def _watch(api: Client, accepted: OperationAccepted, *, as_json: bool) -> int:
    if as_json:
        print_json_line({"type": "accepted", **accepted.model_dump(mode="json")})
    else:
        print_line(f"operation {accepted.op_id}{_acceptance_note(accepted)}")
    return watch(api, accepted.op_id, as_json=as_json, is_known_to_exist=True)


def _acceptance_note(accepted: OperationAccepted) -> str:
    if accepted.repeated:
        return " (this request was accepted before)"
    return f" (already running{_ignored_limits(accepted)})" if accepted.joined else ""


def _ignored_limits(accepted: OperationAccepted) -> str:
    """Name the limits of this command line that do not apply to the operation that it joined."""
    options = ", ".join(f"--{name.removesuffix('_s').replace('_', '-')}" for name in accepted.limits_not_applied)
    return f"; it keeps its own limits, so {options} does not apply" if options else ""


def announcement(accepted: OperationAccepted) -> str:
    status = f"The same operation is already running{_ignored_limits(accepted)}" if accepted.joined else "Accepted"
    if accepted.repeated:
        status = "This request was accepted before"
    return f"{status}: {accepted.op_id}\n  watch it:  nodesmith ops watch {accepted.op_id}"
