"""`nodesmith galleries keygen|sign|rotate|trust`: signs an index, and sets the signatures that a gallery needs."""

import importlib
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import Json, Reason
from nodesmith.cli.output.render import local_time, print_json
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.galleries import TrustRequest
from nodesmith.domain.gallery_trust import GalleryPolicy
from nodesmith.gallery.artifact_keys import BadKey
from nodesmith.gallery.minisign import SecretKey, read_secret

if TYPE_CHECKING:
    from nodesmith.gallery.index_signing import Published, Publisher

Index = Annotated[Path, typer.Argument(metavar="INDEX", help="The index file; its metadata is written beside it.")]
Threshold = Annotated[int, typer.Option(min=1, max=16, help="Number of keys that must sign.")]
Days = Annotated[int, typer.Option("--days", min=1, max=365, help="Days until the index expires.")]
Secrets = Annotated[list[Path], typer.Option("--key", metavar="FILE", help="Secret key; may be repeated.")]


def register(galleries: typer.Typer) -> None:
    galleries.command("keygen")(keygen)
    galleries.command("sign")(sign)
    galleries.command("rotate")(rotate)
    galleries.command("trust")(grouped(trust))


def keygen(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Writes NAME.key and NAME.pub.")],
    *,
    as_json: Json = False,
) -> None:
    """Create a key pair for signing indexes and archives, in minisign's file format.

    The secret key is not encrypted: keep NAME.key where only its owner can read it.
    """
    key, secret, public = SecretKey.make(), Path(f"{name}.key"), Path(f"{name}.pub")
    try:
        with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key.secret_text())
    except FileExistsError:
        raise CommandFailed(f"{secret} already exists.", "Choose another name.", code="key_exists") from None
    public.write_text(key.public_text())
    if as_json:
        return print_json({"id": key.id, "secret": str(secret), "public": str(public)})
    return print_line(f"{secret}  keep it secret\n{public}  key {key.id}")


def sign(
    index: Index,
    *,
    key: Secrets,
    threshold: Threshold = 1,
    days: Days = 30,
    as_json: Json = False,
) -> None:
    """Sign the current index: writes TUF metadata with version and expiry to the folder `metadata` beside it.

    The first run creates 1.root.json, which others trust: nodesmith galleries trust NAME --root 1.root.json.
    """
    try:
        written = _publisher(index, days).sign(read_secrets(key), threshold=threshold)
    except ValueError as error:
        raise _failed(error) from error
    _print_result(index, written, as_json=as_json)


def rotate(
    index: Index,
    *,
    key: Secrets,
    to: Annotated[list[Path], typer.Option("--to", metavar="FILE", help="New secret key; may be repeated.")],
    threshold: Threshold = 1,
    days: Days = 30,
    as_json: Json = False,
) -> None:
    """Replace the keys of a signed index. The old keys sign the new ones, so clients need no new root."""
    try:
        written = _publisher(index, days).rotate(read_secrets(key), read_secrets(to), threshold=threshold)
    except ValueError as error:
        raise _failed(error) from error
    _print_result(index, written, as_json=as_json)


def trust(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the gallery.", show_default=False)],
    *,
    policy: Annotated[
        GalleryPolicy, typer.Option(help="none: no sha256 needed; digest; signed: by --key, --root, or both.")
    ] = GalleryPolicy.SIGNED,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Public key of artifacts (minisign, cosign); may be repeated.",
            show_default=False,
        ),
    ] = None,
    threshold: Annotated[int, typer.Option(min=1, max=16, help="Number of keys that must sign an artifact.")] = 1,
    root: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TUF root of a signed index (metadata/1.root.json).", show_default=False),
    ] = None,
    reason: Reason = "",
    link: Link,
) -> None:
    """Replace the signature policy of a gallery. It stays unchanged if the gallery does not satisfy the new one."""
    body = TrustRequest.model_construct(
        policy=policy, keys=[_text(path) for path in key or []], threshold=threshold, root=_text(root) if root else ""
    )
    with link.api() as api:
        view = api.galleries.set_trust(name, body, reason=reason)
    if link.as_json:
        return print_json(view)
    version = f", index version {view.index_version}" if view.signed_index else ""
    return print_line(f"{view.name}: {view.policy}{version}, {view.entries} backends.")


def _publisher(index: Path, days: int) -> "Publisher":
    """Import the publisher here: python-tuf is in the extra `control`, which a node's installation lacks."""
    try:
        signing = importlib.import_module("nodesmith.gallery.index_signing")
    except ModuleNotFoundError as error:
        raise CommandFailed(
            f"This installation lacks {error.name}, which signing an index needs.",
            "Install Nodesmith with the extra `control`.",
            code="not_installed",
        ) from error
    if not index.is_file():
        raise CommandFailed(f"{index} is not a file.", "Give the path of a gallery's index.", code="no_file")
    publisher: Publisher = signing.Publisher(index, lifetime=timedelta(days=days))
    return publisher


def _print_result(index: Path, written: "Published", *, as_json: bool) -> None:
    if as_json:
        expires = written.expires_at.isoformat()
        return print_json({"root": str(written.root), "version": written.version, "expires_at": expires})
    until = local_time(written.expires_at)
    return print_line(f"Signed {index}, version {written.version}, until {until}.\n  root: {written.root}")


def read_secrets(paths: list[Path]) -> list[SecretKey]:
    """Read the secret keys from these files."""
    try:
        return [read_secret(_text(path)) for path in paths]
    except BadKey as error:
        raise CommandFailed(str(error), "Create a key with `nodesmith galleries keygen`.", code="bad_key") from error


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"{path} cannot be read ({error}).", "Give the path of a key file.", code="no_file"
        ) from error


def _failed(error: Exception) -> CommandFailed:
    return CommandFailed(str(error), "Give --key once for each key that the root requires.", code="cannot_sign")
