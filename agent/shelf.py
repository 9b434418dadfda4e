"""The backends on this node's disk. Blocking, so called in threads.

backends/<family>/<version or digest>/   one installed version, with its metadata.json
backends/<family>/current                -> the version that serves: switched by one rename
backends/<family>/previous               -> the one before it
backends/<family>/.staging-<op>/         not there yet
"""

import contextlib
import hashlib
import os
import re
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from agent.durable import point, sync_folder, sync_tree, write_durably
from contracts.messages import Command, Installed

_METADATA = "metadata.json"
_LONGEST_NAME = 200
_NOT_IN_A_VERSION = re.compile(r"[^A-Za-z0-9._+-]")


class Shelf:
    """Only complete versions are ever visible under `current`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def tidy(self) -> None:
        """Remove what an agent that was killed left unfinished; nothing runs yet."""
        self._root.mkdir(parents=True, exist_ok=True)
        for leftover in [*self._root.glob("*/.staging-*"), *self._root.glob(".removed-*")]:
            shutil.rmtree(leftover, ignore_errors=True)
        for family in self._root.iterdir():
            self._drop_unused(family)

    def installed(self, family: str) -> Installed | None:
        """What serves now."""
        return self._read(self._folder(family), "current")

    def everything(self) -> list[Installed]:
        folders = sorted(folder for folder in self._root.iterdir() if folder.is_dir())
        found = (self._read(folder, "current") for folder in folders)
        return [each for each in found if each is not None]

    def stage(self, family: str, op_id: str) -> Path:
        """An empty folder beside the live version."""
        staging = self._staging(family, op_id)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(staging)
        staging.mkdir(parents=True)
        return staging

    def unstage(self, family: str, op_id: str) -> None:
        shutil.rmtree(self._staging(family, op_id), ignore_errors=True)

    def seal(self, staging: Path, command: Command, digest: str, halt: threading.Event) -> None:
        """Describe the staged version and make it outlive a power cut."""
        installed = Installed(
            name=command.name or command.backend or command.family,
            family=command.family,
            version=command.version,
            uri=command.uri,
            digest=f"sha256:{digest}",
            installed_at=datetime.now(UTC),
        )
        write_durably(staging / _METADATA, installed.encode(), mode=0o644)
        sync_tree(staging, halt)

    def put_live(self, family: str, staging: Path) -> Installed | None:
        """The swap: the old version serves until the one rename of `current`, and stays as `previous`."""
        folder = self._folder(family)
        sealed = Installed.decode((staging / _METADATA).read_bytes())
        place = _free_place(folder, sealed)
        staging.rename(place)
        sync_folder(folder)
        if (folder / "current").is_symlink():
            point(folder / "previous", os.readlink(folder / "current"))  # noqa: PTH115 - the name, not a path
        point(folder / "current", place.name)
        self._drop_unused(folder)
        return self._read(folder, "current")

    def remove(self, family: str, op_id: str) -> bool:
        """Out of sight by one rename, then deleted; False when there was nothing."""
        folder = self._folder(family)
        removed = self._root / f".removed-{hashlib.sha256(op_id.encode()).hexdigest()[:16]}"
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(removed)
        try:
            folder.rename(removed)
        except FileNotFoundError:
            return False
        sync_folder(self._root)
        shutil.rmtree(removed, ignore_errors=True)
        return True

    def _folder(self, family: str) -> Path:
        return self._root / _folder_name(family)

    def _staging(self, family: str, op_id: str) -> Path:
        return self._folder(family) / f".staging-{hashlib.sha256(op_id.encode()).hexdigest()[:16]}"

    def _read(self, folder: Path, link: str) -> Installed | None:
        try:
            installed = Installed.decode((folder / link / _METADATA).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        previous = self._read(folder, "previous") if link == "current" else None
        if previous is None:
            return installed
        return installed.model_copy(update={"previous_version": previous.version, "previous_digest": previous.digest})

    def _drop_unused(self, folder: Path) -> None:
        """Keep the current version, the previous one, and what is being staged."""
        if not folder.is_dir():
            return
        kept = {os.readlink(link) for link in (folder / "current", folder / "previous") if link.is_symlink()}  # noqa: PTH115
        for child in folder.iterdir():
            if child.is_dir() and not child.is_symlink() and child.name not in kept and child.name[0] != ".":
                shutil.rmtree(child, ignore_errors=True)  # the swap has happened: an old folder must not undo that


def _free_place(folder: Path, sealed: Installed) -> Path:
    """The version's name; with its digest when another build of that version lies there already."""
    digest = sealed.digest.removeprefix("sha256:")[:12]
    version = _NOT_IN_A_VERSION.sub("-", sealed.version).lstrip(".-")[:_LONGEST_NAME]
    if version in ("current", "previous"):
        version = ""
    names = [version or digest, f"{version}-{digest}".lstrip("-")]
    names += [f"{names[1]}-{number}" for number in range(2, 10)]
    return next(folder / name for name in names if not (folder / name).exists())


def _folder_name(family: str) -> str:
    """A family comes over the wire: whatever it holds, it names one folder right below `backends`."""
    safe = quote(family, safe=" +~@")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    if len(safe) <= _LONGEST_NAME:
        return safe
    return f"{safe[:140]}~{hashlib.sha256(family.encode()).hexdigest()[:16]}"
