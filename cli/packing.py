"""`nodesmith backend`: a backend of one's own, from a folder to the gallery."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from cli.client import read, segment
from cli.failures import CommandFailed
from cli.grouped import Link, grouped
from cli.options import Json, Reason
from cli.render import print_json, size
from contracts.galleries import UploadView
from gallery.archive import CannotPack, digest, pack

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ARCHIVE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+(?:-[^-0-9][^-]*)?)\.tar\.(?:gz|zst)")

Name = Annotated[str, typer.Option("--name", help="Default: the name of the folder.", show_default=False)]


def register(app: typer.Typer) -> None:
    backend = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    backend.command("pack")(pack_folder)
    backend.command("upload")(grouped(upload))
    app.add_typer(backend, name="backend", help="Make a backend of your own: pack it, upload it.")


def pack_folder(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What becomes the backend; has a run.sh in it.")],
    *,
    version: Annotated[str, typer.Option("--version", help="Of this build.")] = "1",
    name: Name = "",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Where to write. Default: here.", show_default=False)
    ] = None,
    description: Annotated[str, typer.Option(help="One line for the catalogue.")] = "",
    as_json: Json = False,
) -> None:
    """Pack a folder into NAME-VERSION.tar.gz, and write the entry for a gallery beside it.

    The same files give the same bytes on every machine. Put both files on any web server, and `nodesmith galleries add`
    the entry; or `nodesmith backend upload` the archive and need no other server.
    """
    called = _checked(name or folder.resolve().name, version)
    _refuse_without_run(folder)
    target = (output or Path()) / f"{called}-{version}.tar.gz"
    _refuse_inside(folder, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        pack([folder], target)
    except CannotPack as error:
        raise CommandFailed(
            str(error), "Take it out of the folder, or put there what is meant.", code="no_backend"
        ) from error
    entry: dict[str, str | int] = {
        "name": called,
        "version": version,
        "description": description,
        "uri": target.name,
        "sha256": digest(target),
        "size": target.stat().st_size,
    }
    index = target.with_name(f"{called}-{version}.yaml")
    index.write_text(_as_yaml(entry))
    if as_json:
        return print_json({"archive": str(target), "index": str(index), **entry})
    return typer.echo(f"{target} ({size(target.stat().st_size)})\n{index}\n  sha256  {entry['sha256']}")


def upload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NAME-VERSION.tar.gz, as `backend pack` makes it.")],
    *,
    name: Annotated[str, typer.Option("--name", help="Default: as in the file's name.", show_default=False)] = "",
    version: Annotated[str, typer.Option("--version", help="Default: as in the file's name.", show_default=False)] = "",
    description: Annotated[str, typer.Option(help="One line for the catalogue.")] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="May be repeated.")] = None,
    reason: Reason = None,
    link: Link,
) -> None:
    """Upload an archive into the built-in gallery: nodes fetch it from the API, no other server is needed."""
    named = _ARCHIVE.fullmatch(file.name)
    called = _checked(name or (named["name"] if named else ""), version or (named["version"] if named else ""))
    wanted = version or (named["version"] if named else "")
    path = f"/api/uploads/{segment(called)}/{segment(wanted)}"
    try:
        with file.open("rb") as content, link.api() as api:
            sha256 = digest(file)
            kept = read(
                UploadView,
                api.upload(path, content, sha256=sha256, description=description, tag=tag or [], reason=reason),
            )
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).", "Name an archive.", code="no_file") from error
    if link.as_json:
        return print_json(kept)
    return typer.echo(
        f"Uploaded {kept.name} {kept.version} ({size(kept.size)}).\n"
        f"  install it:  nodesmith backends install {kept.name} --on NODE"
    )


def _checked(name: str, version: str) -> str:
    if not _NAME.fullmatch(name) or not _NAME.fullmatch(version):
        raise CommandFailed(
            f"{name!r} {version!r} is no name and version: letters, digits, `.`, `_` and `-` are.",
            "Give --name and --version.",
            code="bad_name",
        )
    return name


def _refuse_inside(folder: Path, target: Path) -> None:
    """An archive in the folder would be in the next archive."""
    if target.resolve().is_relative_to(folder.resolve()):
        raise CommandFailed(
            f"{target} would lie in the folder that is packed.", "Give --output another folder.", code="bad_output"
        )


def _refuse_without_run(folder: Path) -> None:
    if not (folder / "run.sh").is_file():
        raise CommandFailed(
            f"There is no run.sh in {folder}.",
            "A node starts a backend by its run.sh, with --addr HOST:PORT.",
            code="no_run_script",
        )


def _as_yaml(entry: dict[str, str | int]) -> str:
    """JSON's strings and numbers are YAML's too."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in entry.items() if value != ""]
    return "- " + "\n  ".join(lines) + "\n"
