"""`nodesmith backends install|upgrade|rollback|rm`: one node is one operation, many nodes are one batch."""

from typing import Annotated, Any

import typer

from cli.batches import announce, show_plan
from cli.client import ApiClient, read, segment
from cli.connection import connect
from cli.options import Home, Json, Reason, Token, Url
from cli.render import print_json, print_json_line
from cli.watch import watch
from cli.watch_batch import watch_batch
from contracts.batch_http import BatchAccepted, BatchPlan, BatchRequest
from contracts.messages import UpgradePolicy
from contracts.operation_http import InstallRequest, JobAccepted
from domain.operation import Kind

Name = Annotated[str, typer.Argument(metavar="NAME", help="Backend, as `backends ls` names it.", show_default=False)]
On = Annotated[
    list[str] | None,
    typer.Option("--on", metavar="NODE", help="Name or id of a node; may be repeated.", show_default=False),
]
Where = Annotated[
    str, typer.Option("--where", metavar="SELECTOR", help="On the nodes with these labels.", show_default=False)
]
Everywhere = Annotated[bool, typer.Option("--all", help="On every node.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done on each node; start nothing.")]
MaxParallel = Annotated[int | None, typer.Option(min=0, help="Nodes at a time; 0 = all at once.  [default: 20]")]
MaxFailures = Annotated[
    int | None, typer.Option(min=1, help="Stop after so many.  [default: 3; for installs: never]", show_default=False)
]
Watch = Annotated[bool, typer.Option("--watch", help="Stay until it ends; Ctrl-C leaves it running.")]
Version = Annotated[str, typer.Option(help="Default: the newest that is not marked broken.", show_default=False)]
OnDrained = Annotated[bool, typer.Option("--on-drained", help="Also on nodes that are drained, on purpose.")]

_ROUTES = {Kind.INSTALL: "install", Kind.UPGRADE: "upgrade", Kind.ROLLBACK: "rollback", Kind.REMOVE: "remove"}


def register(backends: typer.Typer) -> None:
    for name, command in (("install", install), ("upgrade", upgrade), ("rollback", rollback), ("rm", remove)):
        backends.command(name)(command)


def install(
    name: Name,
    *,
    on: On = None,
    where: Where = "",
    everywhere: Everywhere = False,
    version: Version = "",
    uri: Annotated[
        str,
        typer.Option(
            help="Fetch this instead of what a gallery has: an archive's address, or host/name:tag in a registry.",
            show_default=False,
        ),
    ] = "",
    sha256: Annotated[
        str, typer.Option(help="What the digest must be; an archive by --uri needs it.", show_default=False)
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Install although it is there already.")] = False,
    start: Annotated[
        bool, typer.Option("--start", help="Start it afterwards; nothing is started unless asked.")
    ] = False,
    on_drained: OnDrained = False,
    dry_run: DryRun = False,
    max_parallel: MaxParallel = None,
    max_failures: MaxFailures = None,
    wait: Watch = False,
    reason: Reason = None,
    url: Url = None,
    token: Token = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Install a backend on one node, on several, on those with certain labels, or on all.

    Returns as soon as it is durable. A node that is away gets it when it is back. With --watch the exit code is 0 when
    it succeeded on every node, 1 when it did not, 130 after Ctrl-C (it goes on).
    """
    request = _request(
        Kind.INSTALL,
        name,
        reason=reason,
        nodes=on or [],
        selector=where,
        everywhere=everywhere,
        version=version,
        uri=uri,
        sha256=sha256,
        force=force,
        start=start,
        name=name if uri else "",
        on_drained=on_drained,
        dry_run=dry_run,
        max_parallel=max_parallel,
        max_failures=max_failures,
    )
    with connect(url, token, home) as api:
        _ask(api, request, wait=wait, as_json=as_json)


def upgrade(
    name: Name,
    *,
    on: On = None,
    where: Where = "",
    everywhere: Everywhere = False,
    version: Version = "",
    overlap: Annotated[bool, typer.Option("--overlap", help="Start the new one before the old one stops.")] = False,
    on_drained: OnDrained = False,
    dry_run: DryRun = False,
    max_parallel: MaxParallel = None,
    max_failures: MaxFailures = None,
    wait: Watch = False,
    reason: Reason = None,
    url: Url = None,
    token: Token = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Upgrade a backend where it is installed: to the newest version, or to the one that is named.

    The old version serves until the new one is in place. Exit codes as for `install`.
    """
    request = _request(
        Kind.UPGRADE,
        name,
        reason=reason,
        nodes=on or [],
        selector=where,
        everywhere=everywhere,
        version=version,
        upgrade_policy=UpgradePolicy.OVERLAP if overlap else UpgradePolicy.RESTART,
        on_drained=on_drained,
        dry_run=dry_run,
        max_parallel=max_parallel,
        max_failures=max_failures,
    )
    with connect(url, token, home) as api:
        _ask(api, request, wait=wait, as_json=as_json)


def rollback(
    name: Name,
    *,
    on: On = None,
    where: Where = "",
    everywhere: Everywhere = False,
    on_drained: OnDrained = False,
    dry_run: DryRun = False,
    max_parallel: MaxParallel = None,
    max_failures: MaxFailures = None,
    wait: Watch = False,
    reason: Reason = None,
    url: Url = None,
    token: Token = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Go back to the version before, which is still on the node's disk. Exit codes as for `install`."""
    request = _request(
        Kind.ROLLBACK,
        name,
        reason=reason,
        nodes=on or [],
        selector=where,
        everywhere=everywhere,
        on_drained=on_drained,
        dry_run=dry_run,
        max_parallel=max_parallel,
        max_failures=max_failures,
    )
    with connect(url, token, home) as api:
        _ask(api, request, wait=wait, as_json=as_json)


def remove(
    name: Name,
    *,
    on: On = None,
    where: Where = "",
    everywhere: Everywhere = False,
    on_drained: OnDrained = False,
    dry_run: DryRun = False,
    max_parallel: MaxParallel = None,
    max_failures: MaxFailures = None,
    wait: Watch = False,
    reason: Reason = None,
    url: Url = None,
    token: Token = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Remove a backend. A node that is away is waited for, for as long as it takes. Exit codes as for `install`."""
    request = _request(
        Kind.REMOVE,
        name,
        reason=reason,
        nodes=on or [],
        selector=where,
        everywhere=everywhere,
        on_drained=on_drained,
        dry_run=dry_run,
        max_parallel=max_parallel,
        max_failures=max_failures,
    )
    with connect(url, token, home) as api:
        _ask(api, request, wait=wait, as_json=as_json)


def _request(kind: Kind, backend: str, **said: Any) -> BatchRequest:
    """Only what was said; not validated here: the API says what is wrong, in the words it has for everybody."""
    if sum(map(bool, (said["nodes"], said["selector"], said["everywhere"]))) != 1:
        raise typer.BadParameter("Say where: --on NODE, --where SELECTOR or --all, and only one of them.")
    given = {option: value for option, value in said.items() if value is not None}
    return BatchRequest.model_construct(kind=kind, backend=backend, **given)


def _ask(api: ApiClient, request: BatchRequest, *, wait: bool, as_json: bool) -> None:
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
        typer.echo(f"operation {accepted.jobID}" + (" (was running already)" if accepted.joined else ""))
    return watch(api, accepted.jobID, as_json=as_json, patient=True)


def announcement(accepted: JobAccepted) -> str:
    begun = "The same operation was running already" if accepted.joined else "Accepted"
    return f"{begun}: {accepted.jobID}\n  watch it:  nodesmith ops watch {accepted.jobID}"
