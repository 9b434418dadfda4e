"""The files of models on this node's disk, each stored once by its digest.

model-files/blobs/<sha256>      one file; several models may share it
model-files/sets/<id>/<name>    the files of one model side by side, under the names that its backend expects
"""

import asyncio
import contextlib
import hashlib
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable
from pathlib import Path, PurePosixPath

from nodesmith.agent.disk.durable_files import Disk, has_no_links
from nodesmith.agent.disk.space import Space
from nodesmith.agent.fetch.downloads import Downloads
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Job
from nodesmith.agent.threads import Threads
from nodesmith.contracts.nats.loads import FileOrder, LoadOrder
from nodesmith.domain.operation import Phase, Reason

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PLACE = re.compile(r"\{(file|folder)(?::([^{}]+))?\}")
_LONGEST_NAME = 255


class ModelFiles:
    """Fetches files of models, and deletes those that no model uses. Files of replicas and of jobs are kept."""

    def __init__(
        self, folder: Path, downloads: Downloads, *, disk: Disk, threads: Threads, space: Space, kept_s: float
    ) -> None:
        """`kept_s`: how long files without a model stay, unless the disk is short of space."""
        self._blobs = folder.absolute() / "blobs"
        self._sets = folder.absolute() / "sets"
        self._downloads = downloads
        self._disk = disk
        self._threads = threads
        self._space = space
        self._kept_s = kept_s
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._in_use: Counter[str] = Counter()
        """digests and sets of jobs, which have no record yet"""

    @contextlib.asynccontextmanager
    async def fetched(self, job: Job, load: LoadOrder) -> AsyncIterator[tuple[str, ...]]:
        """Fetch what is missing, and yield the arguments with the paths."""
        _refuse_bad_names(load)
        names = _names_of(load)
        self._in_use.update(names)
        try:
            async with self._digest_locks(load):
                await self._fetch_missing(job, load)
            await self._threads.run(job.halt, self._arrange, load)
            yield tuple(_expanded(each, self._set_of(load), load) for each in load.arguments)
        finally:
            self._in_use.subtract(names)

    def prune(self, named: Iterable[LoadOrder], *, at_once: bool = False) -> None:
        """Delete files that neither a replica nor a job names and that were not used for a while. Blocking."""
        used = {name for load in named for name in _names_of(load)} | {
            name for name, n in self._in_use.items() if n > 0
        }
        before = time.time() - (0 if at_once or not self._space.has_headroom() else self._kept_s)
        for folder in _children(self._sets):
            if folder.name not in used and folder.stat().st_mtime <= before:
                self._disk.remove(folder)
        for blob in _children(self._blobs):
            if blob.name not in used and blob.stat().st_mtime <= before:
                blob.unlink(missing_ok=True)

    def touch(self, load: LoadOrder) -> None:
        """Record that the files were in use until now. Blocking."""
        for path in (self._set_of(load), *(self._blobs / file.sha256 for file in load.files)):
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)

    # fetching -------------------------------------------------------------------------------------------------

    async def _fetch_missing(self, job: Job, load: LoadOrder) -> None:
        missing = [file for file in load.files if not self._has(file)]
        if not missing:
            return
        plan = self._downloads.plan_files([(file.uri, file.sha256, file.size) for file in missing])
        async with self._downloads.fetched(job, plan) as artifact:
            job.gauge.move(Phase.VERIFYING)
            by_digest = dict(zip((file.sha256 for file in missing), artifact.files, strict=True))
            await self._threads.run(job.halt, self._store, by_digest)

    def _has(self, file: FileOrder) -> bool:
        try:
            size = (self._blobs / file.sha256).stat().st_size
        except FileNotFoundError:
            return False
        return not file.size or size == file.size

    def _store(self, fetched: dict[str, Path]) -> None:
        """Keep verified files under their digests; a name appears only after its content is on the disk."""
        self._make_folder(self._blobs)
        for digest, path in fetched.items():
            path.chmod(0o644)
            self._disk.sync(path)
            self._disk.rename(path, self._blobs / digest)
        self._disk.sync(self._blobs)

    def _arrange(self, load: LoadOrder) -> None:
        """Give the files their names, side by side."""
        folder = self._set_of(load)
        self._make_folder(folder)
        for file in load.files:
            blob, link = self._blobs / file.sha256, folder / file.name
            self._make_folder(link.parent)
            if not _is_same_file(link, blob):
                link.unlink(missing_ok=True)
                self._link(link, blob)
        self.touch(load)

    def _link(self, link: Path, blob: Path) -> None:
        try:
            self._disk.hardlink(link, blob)
        except OSError as error:
            if not has_no_links(error):
                raise
            self._disk.symlink(link, str(blob))

    def _make_folder(self, folder: Path) -> None:
        """Make the folder and those above it, so that the user of backends may enter them."""
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        self._disk.make_folder(folder)
        for each in missing:
            each.chmod(0o755)

    def _set_of(self, load: LoadOrder) -> Path:
        return self._sets / _set_name(load)

    @contextlib.asynccontextmanager
    async def _digest_locks(self, load: LoadOrder) -> AsyncIterator[None]:
        """Hold the locks of all files, acquired in one order; two loads of one file fetch it once."""
        async with contextlib.AsyncExitStack() as stack:
            for digest in sorted({file.sha256 for file in load.files}):
                await stack.enter_async_context(self._locks[digest])
            yield


def _set_name(load: LoadOrder) -> str:
    """Name a set by its content, so that equal models share it and a changed one gets another."""
    listed = "\n".join(f"{file.sha256} {file.name}" for file in sorted(load.files, key=lambda file: file.name))
    return hashlib.sha256(listed.encode()).hexdigest()[:32]


def _names_of(load: LoadOrder) -> list[str]:
    return [_set_name(load), *{file.sha256 for file in load.files}]


def _children(folder: Path) -> Collection[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _is_same_file(link: Path, blob: Path) -> bool:
    try:
        return link.samefile(blob)
    except FileNotFoundError:
        return False


def _refuse_bad_names(load: LoadOrder) -> None:
    """The control plane checks them too; a name that leaves the folder must not depend on that."""
    for file in load.files:
        parts = PurePosixPath(file.name).parts
        is_safe = parts and ".." not in parts and not file.name.startswith("/") and "\0" not in file.name
        if not is_safe or len(file.name) > _LONGEST_NAME or str(PurePosixPath(file.name)) != file.name:
            raise OperationFailed(Reason.REFUSED_BY_NODE, f"{file.name!r} is no name of a model's file.")
        if not _DIGEST.fullmatch(file.sha256):
            raise OperationFailed(Reason.REFUSED_BY_NODE, f"The file {file.name} has no sha256 digest.")


def _expanded(argument: str, folder: Path, load: LoadOrder) -> str:
    """Replace {file} by the path of the first file, {file:NAME} by that of NAME, {folder} by their folder."""

    def path(found: re.Match[str]) -> str:
        what, name = found[1], found[2]
        if what == "folder" and name is None:
            return str(folder)
        names = [file.name for file in load.files]
        if what == "folder" or not names or (name is not None and name not in names):
            raise OperationFailed(
                Reason.REFUSED_BY_NODE, f"The argument {argument!r} names a file that the model does not have."
            )
        return str(folder / (name or names[0]))

    return _PLACE.sub(path, argument)
