"""`nodesmith keys`: the keys that sign orders to nodes."""

from pathlib import Path
from typing import Annotated

import typer

from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import Json, Reason
from nodesmith.cli.output.render import Column, local_time, print_json, show_list
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.keys import KeysView, NodesBehind, OrderKeyView, RotateKeys
from nodesmith.runtime.keyring import CHAIN, Keyring, create_keys

COLUMNS: list[Column[OrderKeyView]] = [
    Column("KEY", lambda key: key.kid),
    Column("VALID UNTIL", lambda key: local_time(key.until)),
    Column("SIGNS", lambda key: "yes" if key.signs else "no"),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="Use the key files in this folder instead of the API.",
        file_okay=False,
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    keys = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    keys.command("ls")(grouped(list_keys))
    keys.command("rotate")(grouped(rotate))
    keys.command("init")(init)
    app.add_typer(keys, name="keys", help="List and replace the keys that sign orders to nodes.")


def list_keys(*, folder: Folder = None, link: Link) -> None:
    """List the order keys that nodes trust, the root key's fingerprint, and the nodes without the newest trust list."""
    if folder is not None:
        return _show(_read(Keyring.opened(folder)), as_json=link.as_json)
    with link.api() as api:
        return _show(api.keys.list(), as_json=link.as_json)


def rotate(
    *,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="For a stolen key: nodes refuse orders signed with the old keys at once.")
    ] = False,
    root: Annotated[
        bool, typer.Option("--root", help="Replace the root key too; nodes accept it automatically.")
    ] = False,
    folder: Folder = None,
    reason: Reason = "",
    link: Link,
) -> None:
    """Sign orders with a new key from now on. The old key stays valid for 48 hours, unless it is revoked.

    Connected nodes receive the new trust list at once; `nodesmith keys ls` names the nodes without it.
    With --folder only the files in that folder change: copy them to every API replica afterwards.
    """
    if folder is not None:
        keyring = Keyring.opened(folder)
        keyring.rotate(revoke=revoke, root=root)
        return _show(_read(keyring), as_json=link.as_json)
    with link.api() as api:
        rotated = api.keys.rotate(RotateKeys(revoke=revoke, root=root), reason=reason)
    return _show(rotated, as_json=link.as_json)


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to create.", show_default=False)],
    *,
    as_json: Json = False,
) -> None:
    """Create a root key, an order key and the first trust list, for NODESMITH_ORDER_KEYS of every API replica.

    Nodes that trust another root key must join again.
    """
    if (folder / CHAIN).exists():
        raise CommandFailed(f"{folder} already contains keys.", "Choose another folder, or rotate these.", code="usage")
    create_keys(folder)
    _show(_read(Keyring.opened(folder)), as_json=as_json)


def _read(keyring: Keyring) -> KeysView:
    return KeysView.model_validate(keyring.keys(), from_attributes=True)


def _show(view: KeysView, *, as_json: bool) -> None:
    if as_json:
        return print_json(view)
    print_line(f"root key {view.trust}, trust list {view.version}")
    if view.nodes_behind is not None:
        print_line(_describe_nodes_behind(view.nodes_behind))
    return show_list(view.keys, COLUMNS, as_json=False, empty_message="There is no order key.")


def _describe_nodes_behind(behind: NodesBehind) -> str:
    if not behind.count:
        return "every node has this trust list"
    more = ", ..." if behind.count > len(behind.names) else ""
    subject = "1 node has" if behind.count == 1 else f"{behind.count} nodes have"
    return f"{subject} an older trust list: {', '.join(behind.names)}{more}"
