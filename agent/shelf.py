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
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from agent.durable import Disk, point, sync_tree, target_of, write_durably
from agent.failures import OperationFailed
from agent.plan import Place, Plan, Step
from contracts.messages import Command, Installed
from domain.operation import Kind, Reason

RUN = "run.sh"
_METADATA = "metadata.json"
_LONGEST_NAME = 200
_NOT_IN_A_VERSION = re.compile(r"[^A-Za-z0-9._+-]")


class Shelf:
    """Only complete versions are ever visible under `current`."""

    def __init__(self, root: Path, disk: Disk | None = None, vital: Disk | None = None) -> None:
        """`vital`: the disk for the steps of a plan."""
        self._root = root
        self._disk = disk or Disk()
        self._vital = vital or self._disk

    def tidy(self, plans: Collection[Plan] = ()) -> None:
        """Remove what an agent that was killed left unfinished, and no plan names; nothing runs yet."""
        self._disk.make_folder(self._root)
        moved = {plan.to.folder for plan in plans if plan.kind is Kind.REMOVE}
        for folder in list(self._root.iterdir()):
            if folder.name.startswith(".removed-"):
                self._drop([folder], moved)
                continue
            named = set[str]().union(*(plan.names() for plan in plans if self._folder(plan.family) == folder))
            self._drop(folder.glob(".staging-*"), named)
            self._drop_unused(folder, named)

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

    # one step of a plan each ----------------------------------------------------------------------------------

    def draft(self, command: Command) -> Plan:
        """From the tree as it is now to the one that the command asks for."""
        folder = self._folder(command.family)
        current, previous = (self._place(folder, pointer) for pointer in ("current", "previous"))
        staging = self.staging(command.family, command.op_id).name
        match command.kind:
            case Kind.REMOVE:
                to, staging = Place(folder=_removed_name(command.op_id)), ""
            case Kind.ROLLBACK:
                to, staging = self._require_previous(command.family, previous), ""
            case _:
                to = _free_place(folder, Installed.decode((folder / staging / _METADATA).read_bytes()))
        return Plan(
            op_id=command.op_id,
            kind=command.kind,
            family=command.family,
            policy=command.policy,
            old=current,
            previous=previous,
            to=to,
            staging=staging,
            before=self._describe(folder),
        )

    def take(self, step: Step, plan: Plan) -> None:
        """One of the steps that change the tree; repeated, it changes nothing more."""
        folder = self._folder(plan.family)
        match step:
            case Step.PLACE:
                self._put(folder / plan.staging, folder / plan.to.folder)
            case Step.SET_PREVIOUS:
                self._point(folder / "previous", plan.old)
            case Step.SET_CURRENT:
                self._point(folder / "current", plan.to)
                self._vital.sync(self._root)
            case Step.MOVE_AWAY:
                self._put(folder, self._root / plan.to.folder)
            case Step.FREE_SPACE:
                self._point(folder / "previous", None)

    def go_back(self, plan: Plan) -> None:
        """OLD, whatever was done; `to` stays for the next try."""
        folder = self._folder(plan.family)
        if plan.kind is Kind.REMOVE:
            return self._put(self._root / plan.to.folder, folder)
        if folder.is_dir():
            self._point(folder / "current", plan.old)
            self._point(folder / "previous", plan.previous)
        return None

    def can_begin(self, plan: Plan) -> bool:
        """Whether the tree is OLD, and what the plan leads to is here whole."""
        folder = self._folder(plan.family)
        if (self._place(folder, "current"), self._place(folder, "previous")) != (plan.old, plan.previous):
            return False
        there = (folder / name for name in (plan.to.folder, plan.staging) if name)
        return plan.kind is Kind.REMOVE or any(self._digest(version) == plan.to.digest for version in there)

    def version(self, family: str, place: Place) -> Path:
        return self._folder(family) / place.folder

    def is_there(self, family: str) -> bool:
        return self._folder(family).is_dir()

    def prune(self, family: str, plans: Iterable[Plan] = ()) -> None:
        """Drop what neither serves, nor did before, nor is named by a plan."""
        folder = self._folder(family)
        self._drop_unused(folder, _named(plans, family))
        with contextlib.suppress(OSError):
            folder.rmdir()

    def clean_up(self, plan: Plan, plans: Iterable[Plan]) -> None:
        """After the end of a plan."""
        if plan.kind is Kind.REMOVE and not self.is_there(plan.family):
            return self._disk.remove(self._root / plan.to.folder)
        if plan.staging:
            self._disk.remove(self._folder(plan.family) / plan.staging)
        return self.prune(plan.family, plans)

    def _put(self, source: Path, target: Path) -> None:
        """Under its new name, if it is not there already."""
        if target.exists() or not source.exists():
            return
        self._vital.rename(source, target)
        self._vital.sync(target.parent)

    def _point(self, pointer: Path, place: Place | None) -> None:
        if place is not None:
            if target_of(pointer) != place.folder:
                point(pointer, place.folder, self._vital)
        elif target_of(pointer) is not None:
            pointer.unlink()
            self._vital.sync(pointer.parent)

    def _require_previous(self, family: str, previous: Place | None) -> Place:
        if self.installed(family) is None:
            raise not_installed(family)
        if previous is None:
            raise OperationFailed(Reason.NO_PREVIOUS_VERSION, f"Only one version of {family} is on this node.")
        return previous

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

    def _place(self, folder: Path, pointer: str) -> Place | None:
        version = self._version(folder, pointer)
        return Place(folder=version.name, digest=self._digest(version)) if version is not None else None

    def _digest(self, version: Path) -> str:
        installed = self._read(version)
        return installed.digest if installed is not None else ""

    def _drop_unused(self, folder: Path, named: Collection[str]) -> None:
        """Keep the current version, the previous one, what a plan names, and what is being staged."""
        if not folder.is_dir():
            return
        kept = {target_of(folder / pointer) for pointer in ("current", "previous")} | set(named)
        versions = [child for child in folder.iterdir() if child.is_dir() and not child.is_symlink()]
        self._drop((version for version in versions if version.name[0] != "."), kept)

    def _drop(self, folders: Iterable[Path], kept: Collection[str | None]) -> None:
        for folder in list(folders):
            if folder.name not in kept:
                self._disk.remove(folder)


def not_installed(family: str) -> OperationFailed:
    return OperationFailed(Reason.NOT_INSTALLED, f"{family} is not installed on this node.")


def _named(plans: Iterable[Plan], family: str) -> set[str]:
    return set().union(*(plan.names() for plan in plans if plan.family == family))


def _removed_name(op_id: str) -> str:
    return f".removed-{hashlib.sha256(op_id.encode()).hexdigest()[:16]}"


def _free_place(folder: Path, sealed: Installed) -> Place:
    """The version's name; with its digest when another build of that version lies there already."""
    digest = sealed.digest.removeprefix("sha256:")[:12]
    version = _NOT_IN_A_VERSION.sub("-", sealed.version).lstrip(".-")[:_LONGEST_NAME]
    if version in ("current", "previous"):
        version = ""
    names = [version or digest, f"{version}-{digest}".lstrip("-")]
    names += [f"{names[1]}-{number}" for number in range(2, 10)]
    free = next(name for name in names if not (folder / name).exists())
    return Place(folder=free, digest=sealed.digest)


def _folder_name(family: str) -> str:
    """A family comes over the wire: whatever it holds, it names one folder right below `backends`."""
    safe = quote(family, safe=" +~@")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    if len(safe) <= _LONGEST_NAME:
        return safe
    return f"{safe[:140]}~{hashlib.sha256(family.encode()).hexdigest()[:16]}"
