"""Manages the installed backends on this node's disk. Blocking, so called in threads.

backends/<family>/<version or digest>/   one installed version, with its metadata.json
backends/<family>/current                -> the version in use, switched by one rename
backends/<family>/previous               -> the version before it
backends/<family>/.staging-<op>/         a version being unpacked
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

from nodesmith.agent.disk.durable_files import Disk, point, sync_tree, target_of, write_durably
from nodesmith.agent.operations.change_plan import ChangePlan, Step, VersionFolder
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.contracts.nats.messages import Command, Installed
from nodesmith.domain.addresses import without_query
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason

RUN = "run.sh"
_METADATA = "metadata.json"
_MAX_NAME = 200
_NOT_IN_A_VERSION = re.compile(r"[^A-Za-z0-9._+-]")


class InstalledBackends:
    """Guarantees that `current` always refers to a complete version."""

    def __init__(self, root: Path, disk: Disk | None = None, plan_disk: Disk | None = None) -> None:
        """`plan_disk`: used for the steps of a plan; may use the disk reserve."""
        self._root = root
        self._disk = disk or Disk()
        self._plan_disk = plan_disk or self._disk

    def remove_leftovers(self, plans: Collection[ChangePlan] = ()) -> None:
        """Delete unfinished folders of a killed agent that no plan names; called before any process runs."""
        self._disk.make_folder(self._root)
        moved = {plan.to.folder for plan in plans if plan.kind is Kind.REMOVE}
        for folder in list(self._root.iterdir()):
            if folder.name.startswith(".removed-"):
                self._drop([folder], moved)
                continue
            named = set[str]().union(*(plan.folder_names() for plan in plans if self._folder(plan.family) == folder))
            self._drop(folder.glob(".staging-*"), named)
            self._drop_unused(folder, named)

    # queries --------------------------------------------------------------------------------------------------

    def installed(self, family: str) -> Installed | None:
        """Return the current version."""
        return self._describe(self._folder(family))

    def everything(self) -> list[Installed]:
        folders = sorted(folder for folder in self._root.iterdir() if folder.is_dir())
        found = (self._describe(folder) for folder in folders)
        return [each for each in found if each is not None]

    def names(self) -> set[str]:
        """Return the folder names of all families."""
        return {folder.name for folder in self._root.iterdir()}

    def live(self, family: str) -> Path | None:
        """Return the folder of the current version, which is never replaced under a running process."""
        return self._version(self._folder(family), "current")

    def is_runnable(self, family: str) -> bool:
        folder = self.live(family)
        return folder is not None and (folder / RUN).is_file()

    # staging --------------------------------------------------------------------------------------------------

    def stage(self, family: str, op_id: str) -> Path:
        """Create an empty staging folder beside the live version."""
        staging = self.staging(family, op_id)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(staging)
        self._disk.make_folder(staging)
        return staging

    def unstage(self, family: str, op_id: str) -> None:
        """Delete the staging folder, and the family's folder if it is then empty."""
        self._disk.remove(self.staging(family, op_id))
        with contextlib.suppress(OSError):
            self._folder(family).rmdir()

    def seal(self, staging: Path, command: Command, digest: str, halt: threading.Event) -> None:
        """Write the metadata of the staged version and sync all of it."""
        run = staging / RUN
        if not run.is_file():
            raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive is not a backend: it has no {RUN}.")
        run.chmod(run.stat().st_mode | 0o111)
        installed = Installed(
            name=command.name or command.backend or command.family,
            family=command.family,
            version=command.version,
            uri=without_query(command.uri),  # the query may be a secret
            digest=f"sha256:{digest}",
            installed_at=datetime.now(UTC),
        )
        write_durably(staging / _METADATA, installed.encode(), mode=0o644, disk=self._disk)
        sync_tree(staging, halt, self._disk)

    # steps of a plan ------------------------------------------------------------------------------------------

    def draft(self, command: Command) -> ChangePlan:
        """Plan the change from the current tree to the one that the command requests."""
        folder = self._folder(command.family)
        current, previous = (self._place(folder, pointer) for pointer in ("current", "previous"))
        staging = self.staging(command.family, command.op_id).name
        match command.kind:
            case Kind.REMOVE:
                to, staging = VersionFolder(folder=_removed_name(command.op_id)), ""
            case Kind.ROLLBACK:
                to, staging = self._require_previous(command.family, previous), ""
            case _:
                to = _free_place(folder, Installed.decode((folder / staging / _METADATA).read_bytes()))
        return ChangePlan(
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

    def apply_step(self, step: Step, plan: ChangePlan) -> None:
        """Apply a step that changes the tree; idempotent."""
        folder = self._folder(plan.family)
        match step:
            case Step.PLACE:
                self._move(folder / plan.staging, folder / plan.to.folder)
            case Step.SET_PREVIOUS:
                self._point(folder / "previous", plan.old)
            case Step.SET_CURRENT:
                self._point(folder / "current", plan.to)
                self._plan_disk.sync(self._root)
            case Step.MOVE_AWAY:
                self._move(folder, self._root / plan.to.folder)
            case Step.FREE_SPACE:
                self._point(folder / "previous", None)

    def revert(self, plan: ChangePlan) -> None:
        """Restore OLD from any step; `to` is kept for a retry."""
        folder = self._folder(plan.family)
        if plan.kind is Kind.REMOVE:
            return self._move(self._root / plan.to.folder, folder)
        if folder.is_dir():
            self._point(folder / "current", plan.old)
            self._point(folder / "previous", plan.previous)
        return None

    def can_begin(self, plan: ChangePlan) -> bool:
        """Whether the tree is OLD and the plan's target version is complete on disk."""
        folder = self._folder(plan.family)
        if (self._place(folder, "current"), self._place(folder, "previous")) != (plan.old, plan.previous):
            return False
        candidates = (folder / name for name in (plan.to.folder, plan.staging) if name)
        return plan.kind is Kind.REMOVE or any(self._digest(version) == plan.to.digest for version in candidates)

    def version(self, family: str, place: VersionFolder) -> Path:
        return self._folder(family) / place.folder

    def has_family(self, family: str) -> bool:
        return self._folder(family).is_dir()

    def prune(self, family: str, plans: Iterable[ChangePlan] = ()) -> None:
        """Delete versions that are neither current nor previous nor named by a plan."""
        folder = self._folder(family)
        self._drop_unused(folder, _named(plans, family))
        with contextlib.suppress(OSError):
            folder.rmdir()

    def clean_up(self, plan: ChangePlan, plans: Iterable[ChangePlan]) -> None:
        """Delete what a completed plan no longer needs."""
        if plan.kind is Kind.REMOVE and not self.has_family(plan.family):
            return self._disk.remove(self._root / plan.to.folder)
        if plan.staging:
            self._disk.remove(self._folder(plan.family) / plan.staging)
        return self.prune(plan.family, plans)

    def _move(self, source: Path, target: Path) -> None:
        """Rename, unless it was done before."""
        if target.exists() or not source.exists():
            return
        self._plan_disk.rename(source, target)
        self._plan_disk.sync(target.parent)

    def _point(self, pointer: Path, place: VersionFolder | None) -> None:
        if place is not None:
            if target_of(pointer) != place.folder:
                point(pointer, place.folder, self._plan_disk)
        elif target_of(pointer) is not None:
            pointer.unlink()
            self._plan_disk.sync(pointer.parent)

    def _require_previous(self, family: str, previous: VersionFolder | None) -> VersionFolder:
        if self.installed(family) is None:
            raise not_installed(family)
        if previous is None:
            raise OperationFailed(Reason.NO_PREVIOUS_VERSION, f"Only one version of {family} is on this node.")
        return previous

    # folders --------------------------------------------------------------------------------------------------

    def _folder(self, family: str) -> Path:
        return self._root / _folder_name(family)

    def staging(self, family: str, op_id: str) -> Path:
        return self._folder(family) / f".staging-{hashlib.sha256(op_id.encode()).hexdigest()[:16]}"

    def _version(self, folder: Path, pointer: str) -> Path | None:
        """Return a pointer's target; ignore a `previous` equal to `current`, left by a kill between two renames."""
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

    def _place(self, folder: Path, pointer: str) -> VersionFolder | None:
        version = self._version(folder, pointer)
        return VersionFolder(folder=version.name, digest=self._digest(version)) if version is not None else None

    def _digest(self, version: Path) -> str:
        installed = self._read(version)
        return installed.digest if installed is not None else ""

    def _drop_unused(self, folder: Path, named: Collection[str]) -> None:
        """Delete all versions except current, previous, staged ones and those a plan names."""
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


def _named(plans: Iterable[ChangePlan], family: str) -> set[str]:
    return set().union(*(plan.folder_names() for plan in plans if plan.family == family))


def _removed_name(op_id: str) -> str:
    return f".removed-{hashlib.sha256(op_id.encode()).hexdigest()[:16]}"


def _free_place(folder: Path, sealed: Installed) -> VersionFolder:
    """Return a free folder name: the version, with its digest if another build of that version exists."""
    digest = sealed.digest.removeprefix("sha256:")[:12]
    version = _NOT_IN_A_VERSION.sub("-", sealed.version).lstrip(".-")[:_MAX_NAME]
    if version in ("current", "previous"):
        version = ""
    names = [version or digest, f"{version}-{digest}".lstrip("-")]
    names += [f"{names[1]}-{number}" for number in range(2, 10)]
    free = next(name for name in names if not (folder / name).exists())
    return VersionFolder(folder=free, digest=sealed.digest)


def _folder_name(family: str) -> str:
    """Map an untrusted family name to one safe folder name below `backends`."""
    safe = quote(family, safe=" +~@")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    if len(safe) <= _MAX_NAME:
        return safe
    return f"{safe[:140]}~{hashlib.sha256(family.encode()).hexdigest()[:16]}"
