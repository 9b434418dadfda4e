"""Reproducible archives: the same files give the same digest on every machine."""

import gzip
import hashlib
import os
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from nodesmith.domain.artifact import RESERVED


def pack(folders: list[Path], target: Path) -> None:
    """Write the files of `folders` as one .tar.gz, atomically."""
    found = _found(folders)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            _write(file, found)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class CannotPack(ValueError):
    """The folder contains something that nodes cannot unpack."""


def _write(file: BinaryIO, found: Mapping[str, Path]) -> None:
    # Level 0: compressed bytes depend on the zlib version, stored blocks do not.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=0, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in sorted(found.items()):
            if path.is_symlink():
                archive.addfile(_link(name, path))
            elif path.is_dir():
                archive.addfile(_empty(name))
            else:
                with path.open("rb") as content:
                    archive.addfile(_member(name, path), content)


def _found(folders: list[Path]) -> dict[str, Path]:
    """Find files, links and empty folders; other folders are implied by their content."""
    found = {
        path.relative_to(folder).as_posix(): path
        for folder in folders
        for path in folder.rglob("*")
        if "__pycache__" not in path.relative_to(folder).parts and _is_wanted(path)
    }
    for name, path in found.items():
        if name.partition("/")[0] in RESERVED:
            raise CannotPack(f"{path} has a name that Nodesmith reserves.")
    return found


def _is_wanted(path: Path) -> bool:
    if path.is_symlink() or path.is_file():
        return True
    if path.is_dir():
        return not any(path.iterdir())
    raise CannotPack(f"{path} is not a file, folder or link.")


def _link(name: str, path: Path) -> tarfile.TarInfo:
    """Keep a link within the folder; leading `..` come first in its target, as nodes require."""
    text = os.readlink(path)  # noqa: PTH115 - the text, not a path
    place = PurePosixPath(name).parent
    target = os.path.normpath(place / text)
    if target.split("/")[0] in ("", ".."):
        raise CannotPack(f"{path} links to {text}, which is not in the folder.")
    member = tarfile.TarInfo(name)
    member.type = tarfile.SYMTYPE
    member.linkname = os.path.relpath(target, place)
    return member


def _empty(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    return member


def _member(name: str, path: Path) -> tarfile.TarInfo:
    """Set only name, content and the executable bit: owners and times differ between machines."""
    found = path.stat()
    member = tarfile.TarInfo(name)
    member.size = found.st_size
    member.mode = 0o755 if name.endswith(".sh") or found.st_mode & stat.S_IXUSR else 0o644
    return member
