"""`nodesmith backend`: packs a folder as a backend and uploads it to the built-in gallery."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from nodesmith.cli.commands.gallery_signing import read_secrets
from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import Json, Reason
from nodesmith.cli.output.render import print_json, size
from nodesmith.cli.output.terminal import print_line
from nodesmith.gallery.archive_packing import CannotPack, digest, pack
from nodesmith.gallery.minisign import SecretKey

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ARCHIVE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+(?:-[^-0-9][^-]*)?)\.tar\.(?:gz|zst)")

Name = Annotated[str, typer.Option("--name", help="Default: the name of the folder.", show_default=False)]


def register(app: typer.Typer) -> None:
    backend = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    backend.command("pack")(pack_folder)
    backend.command("upload")(grouped(upload))
    app.add_typer(backend, name="backend", help="Pack and upload your own backend.")


def pack_folder(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the backend; must contain run.sh.")],
    *,
    version: Annotated[str, typer.Option("--version", help="Version of this build.")] = "1",
    name: Name = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="DIR", help="Folder to write to. Default: the current one.", show_default=False
        ),
    ] = None,
    description: Annotated[str, typer.Option(help="One line for the catalogue.")] = "",
    sign: Annotated[
        list[Path] | None,
        typer.Option(metavar="KEY", help="Write ARCHIVE.minisig with this secret key; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Pack a folder into NAME-VERSION.tar.gz, and write a gallery entry beside it.

    The archive is reproducible: the same files give the same bytes. Put both files on a web server and add the entry
    with `nodesmith galleries add`; or upload the archive with `nodesmith backend upload`, without another server.
    """
    checked_name = _checked(name or folder.resolve().name, version)
    _refuse_without_run(folder)
    target = (output or Path()) / f"{checked_name}-{version}.tar.gz"
    _refuse_inside(folder, target)
    keys = _signing_keys(folder, sign or [])
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        pack([folder], target)
    except CannotPack as error:
        raise CommandFailed(str(error), "Remove the file from the folder, or replace it.", code="no_backend") from error
    entry: dict[str, str | int] = {
        "name": checked_name,
        "version": version,
        "description": description,
        "uri": target.name,
        "sha256": digest(target),
        "size": target.stat().st_size,
    }
    index = target.with_name(f"{checked_name}-{version}.yaml")
    index.write_text(_as_yaml(entry))
    signed_by = _sign(target, keys)
    if as_json:
        return print_json({"archive": str(target), "index": str(index), **entry, "signed_by": signed_by})
    signed = f"\n  signed  {', '.join(signed_by)}" if signed_by else ""
    return print_line(f"{target} ({size(target.stat().st_size)})\n{index}\n  sha256  {entry['sha256']}{signed}")


def _signing_keys(folder: Path, paths: list[Path]) -> list[SecretKey]:
    """Read the keys before anything is written; refuse one that the archive would publish."""
    for path in paths:
        if path.resolve().is_relative_to(folder.resolve()):
            raise CommandFailed(f"{path} is a secret key and would be in the archive.", "Move it.", code="bad_key")
    return read_secrets(paths)


def _sign(archive: Path, keys: list[SecretKey]) -> list[str]:
    """Write all signatures to one file beside the archive; each one contains the archive's sha256."""
    signatures = "".join(key.sign(archive, sha256=digest(archive)) for key in keys)
    if signatures:
        archive.with_name(f"{archive.name}.minisig").write_text(signatures)
    return [key.id for key in keys]


def upload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NAME-VERSION.tar.gz, from `backend pack`.")],
    *,
    name: Annotated[str, typer.Option("--name", help="Default: as in the file's name.", show_default=False)] = "",
    version: Annotated[str, typer.Option("--version", help="Default: as in the file's name.", show_default=False)] = "",
    description: Annotated[str, typer.Option(help="One line for the catalogue.")] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="May be repeated.")] = None,
    reason: Reason = "",
    link: Link,
) -> None:
    """Upload an archive to the built-in gallery: nodes fetch it from the API, without another server."""
    named = _ARCHIVE.fullmatch(file.name)
    checked_name = _checked(name or (named["name"] if named else ""), version or (named["version"] if named else ""))
    wanted = version or (named["version"] if named else "")
    try:
        with file.open("rb") as content, link.api() as api:
            sha256 = digest(file)
            uploaded = api.uploads.create(
                checked_name,
                wanted,
                content,
                sha256=sha256,
                description=description,
                tags=(*(tag or ()),),
                reason=reason,
            )
    except OSError as error:
        raise CommandFailed(
            f"{file} cannot be read ({error.strerror}).", "Give the path of an archive.", code="no_file"
        ) from error
    if link.as_json:
        return print_json(uploaded)
    return print_line(
        f"Uploaded {uploaded.name} {uploaded.version} ({size(uploaded.size)}).\n"
        f"  install it:  nodesmith backends install {uploaded.name} --on NODE"
    )


def _checked(name: str, version: str) -> str:
    if not _NAME.fullmatch(name) or not _NAME.fullmatch(version):
        raise CommandFailed(
            f"{name!r} {version!r} is not a valid name and version: use letters, digits, `.`, `_` and `-`.",
            "Give --name and --version.",
            code="bad_name",
        )
    return name


def _refuse_inside(folder: Path, target: Path) -> None:
    """Refuse to write into the packed folder: the next archive would contain this one."""
    if target.resolve().is_relative_to(folder.resolve()):
        raise CommandFailed(
            f"{target} is inside the folder that is packed.", "Choose another folder with --output.", code="bad_output"
        )


def _refuse_without_run(folder: Path) -> None:
    if not (folder / "run.sh").is_file():
        raise CommandFailed(
            f"There is no run.sh in {folder}.",
            "Add one: a node starts a backend with `run.sh --addr HOST:PORT`.",
            code="no_run_script",
        )


def _as_yaml(entry: dict[str, str | int]) -> str:
    """Format as YAML, which accepts JSON's strings and numbers."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in entry.items() if value != ""]
    return "- " + "\n  ".join(lines) + "\n"
