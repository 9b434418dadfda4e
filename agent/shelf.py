"""The backends on this node's disk. Blocking, so called in threads.

backends/<family>/<version or digest>/   one installed version, with its metadata.json
backends/<family>/current                -> the version that serves: switched by one rename
backends/<family>/previous               -> the one before it
backends/<family>/.staging-<op>/         not there yet
"""

import contextlib
import hashlib
import re
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from agent.durable import Disk, point, sync_tree, target_of, write_durably
from agent.failures import OperationFailed
from contracts.messages import Command, Installed
from domain.operation import Reason

RUN = "run.sh"
_METADATA = "metadata.json"
_LONGEST_NAME = 200
_NOT_IN_A_VERSION = re.compile(r"[^A-Za-z0-9._+-]")


class Shelf:
    """Only complete versions are ever visible under `current`."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._root = root
        self._disk = disk or Disk()

    def tidy(self) -> None:
        """Remove what an agent that was killed left unfinished; nothing runs yet."""
        self._disk.make_folder(self._root)
        for leftover in [*self._root.glob("*/.staging-*"), *self._root.glob(".removed-*")]:
            self._disk.remove(leftover)
        for family in self._root.iterdir():
            self._drop_unused(family)

    # what is there --------------------------------------------------------------------------------------------

    def installed(self, family: str) -> Installed | None:
        """What serves now."""
        return self._describe(self._folder(family))

    def everything(self) -> list[Installed]:
        folders = sorted(folder for folder in self._root.iterdir() if folder.is_dir())
        found = (self._describe(folder) for folder in folders)
        return [each for each in found if each is not None]

    def live(self, family: str) -> Path | None:
        """The folder of the version that serves: its own, which is never replaced under a running process."""
        return self._version(self._folder(family), "current")

    def is_runnable(self, family: str) -> bool:
        folder = self.live(family)
        return folder is not None and (folder / RUN).is_file()

    # bringing a version in ------------------------------------------------------------------------------------

    def stage(self, family: str, op_id: str) -> Path:
        """An empty folder beside the live version."""
        staging = self.staging(family, op_id)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(staging)
        self._disk.make_folder(staging)
        return staging

    def unstage(self, family: str, op_id: str) -> None:
        """Away with it; with the family's folder too, if this was all there ever was."""
        self._disk.remove(self.staging(family, op_id))
        with contextlib.suppress(OSError):
            self._folder(family).rmdir()

    def seal(self, staging: Path, command: Command, digest: str, halt: threading.Event) -> None:
        """Describe the staged version and make it outlive a power cut."""
        run = staging / RUN
        if not run.is_file():
            raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive has no {RUN}: it is no backend.")
        run.chmod(run.stat().st_mode | 0o111)
        installed = Installed(
            name=command.name or command.backend or command.family,
            family=command.family,
            version=command.version,
            uri=command.uri,
            digest=f"sha256:{digest}",
            installed_at=datetime.now(UTC),
        )
        write_durably(staging / _METADATA, installed.encode(), mode=0o644, disk=self._disk)
        sync_tree(staging, halt, self._disk)

    def put_live(self, family: str, staging: Path) -> Installed | None:
        """The swap: the old version serves until the one rename of `current`, and stays as `previous`."""
        folder = self._folder(family)
        sealed = Installed.decode((staging / _METADATA).read_bytes())
        place = _free_place(folder, sealed)
        self._disk.rename(staging, place)
        self._disk.sync(folder)
        replaced = target_of(folder / "current")
        if replaced is not None:
            point(folder / "previous", replaced, self._disk)
        point(folder / "current", place.name, self._disk)
        if replaced is None:
            self._disk.sync(self._root)
        return self._describe(folder)

    def prune(self, family: str) -> None:
        """Drop what is neither current nor previous, once nobody wants to undo the swap any more."""
        self._drop_unused(self._folder(family))

    # going back -----------------------------------------------------------------------------------------------

    def require_previous(self, family: str) -> None:
        """Say what is missing for going back."""
        folder = self._folder(family)
        if self._describe(folder) is None:
            raise not_installed(family)
        if self._version(folder, "previous") is None:
            raise OperationFailed(Reason.NO_PREVIOUS_VERSION, f"Only one version of {family} is on this node.")

    def roll_back(self, family: str) -> Installed | None:
        """The previous version serves again, and the one it replaces becomes the previous one."""
        self.require_previous(family)
        folder = self._folder(family)
        current, previous = target_of(folder / "current"), target_of(folder / "previous")
        point(folder / "current", previous or "", self._disk)
        point(folder / "previous", current or "", self._disk)
        return self._describe(folder)

    def pointers(self, family: str) -> tuple[str | None, str | None]:
        """What serves and what did before, for `restore`."""
        folder = self._folder(family)
        return target_of(folder / "current"), target_of(folder / "previous")

    def restore(self, family: str, pointers: tuple[str | None, str | None]) -> None:
        """Undo a swap; the version that is no good goes away."""
        folder, (current, previous) = self._folder(family), pointers
        if current is not None:
            point(folder / "current", current, self._disk)
        if previous is not None:
            point(folder / "previous", previous, self._disk)
            self._drop_unused(folder)
        else:
            self.forget_previous(family)

    def forget_previous(self, family: str) -> None:
        """For lack of space, or because it is no good."""
        folder = self._folder(family)
        with contextlib.suppress(FileNotFoundError):
            (folder / "previous").unlink()
        self._drop_unused(folder)

    def remove(self, family: str, op_id: str) -> bool:
        """Out of sight by one rename, then deleted; False when there was nothing."""
        folder = self._folder(family)
        removed = self._root / f".removed-{hashlib.sha256(op_id.encode()).hexdigest()[:16]}"
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(removed)
        try:
            self._disk.rename(folder, removed)
        except FileNotFoundError:
            return False
        self._disk.sync(self._root)
        self._disk.remove(removed)
        return True

    # places ---------------------------------------------------------------------------------------------------

    def _folder(self, family: str) -> Path:
        return self._root / _folder_name(family)

    def staging(self, family: str, op_id: str) -> Path:
        return self._folder(family) / f".staging-{hashlib.sha256(op_id.encode()).hexdigest()[:16]}"

    def _version(self, folder: Path, pointer: str) -> Path | None:
        """Where a pointer leads; a `previous` that equals `current` is what a kill between two renames leaves."""
        name = target_of(folder / pointer)
        if name is None or not (folder / name).is_dir():
            return None
        if pointer == "previous" and name == target_of(folder / "current"):
            return None
        return folder / name

    def _describe(self, folder: Path) -> Installed | None:
        current, previous = (self._read(self._version(folder, pointer)) for pointer in ("current", "previous"))
        if current is None or previous is None:
            return current
        return current.model_copy(update={"previous_version": previous.version, "previous_digest": previous.digest})

    def _read(self, version: Path | None) -> Installed | None:
        try:
            return Installed.decode((version / _METADATA).read_bytes()) if version else None
        except (FileNotFoundError, ValueError):
            return None

    def _drop_unused(self, folder: Path) -> None:
        """Keep the current version, the previous one, and what is being staged."""
        if not folder.is_dir():
            return
        kept = {target_of(folder / pointer) for pointer in ("current", "previous")}
        for child in folder.iterdir():
            if child.is_dir() and not child.is_symlink() and child.name not in kept and child.name[0] != ".":
                self._disk.remove(child)


def not_installed(family: str) -> OperationFailed:
    return OperationFailed(Reason.NOT_INSTALLED, f"{family} is not installed on this node.")


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
