"""Archives whose bytes depend on their content alone: the same files give the same digest on every machine."""

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path


def pack(folders: list[Path], target: Path) -> None:
    """Write the files of `folders` as one .tar.gz; a reader sees the whole archive or none."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    unfinished.write_bytes(_archive(folders))
    unfinished.replace(target)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _archive(folders: list[Path]) -> bytes:
    buffer = io.BytesIO()
    # Level 0: deflate may give other bytes with another zlib, stored blocks do not.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=0, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, path in sorted(_files(folders).items()):
            content = path.read_bytes()
            archive.addfile(_member(name, len(content)), io.BytesIO(content))
    return buffer.getvalue()


def _files(folders: list[Path]) -> dict[str, Path]:
    return {
        path.relative_to(folder).as_posix(): path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o755 if name.endswith(".sh") else 0o644
    return member
