"""Archives whose bytes depend on their content alone: the same files give the same digest on every machine."""

import gzip
import hashlib
import os
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO


def pack(folders: list[Path], target: Path) -> None:
    """Write the files of `folders` as one .tar.gz; a reader sees the whole archive or none."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            _write(file, _files(folders))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(file: BinaryIO, files: Mapping[str, Path]) -> None:
    # Level 0: deflate may give other bytes with another zlib, stored blocks do not.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=0, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in sorted(files.items()):
            with path.open("rb") as content:
                archive.addfile(_member(name, path), content)


def _files(folders: list[Path]) -> dict[str, Path]:
    return {
        path.relative_to(folder).as_posix(): path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _member(name: str, path: Path) -> tarfile.TarInfo:
    """Nothing but name, content and whether it is a program: owners and times differ from machine to machine."""
    found = path.stat()
    member = tarfile.TarInfo(name)
    member.size = found.st_size
    member.mode = 0o755 if name.endswith(".sh") or found.st_mode & stat.S_IXUSR else 0o644
    return member
