"""Resumable downloads: partial files are keyed by the digest of the complete content."""

import asyncio
import contextlib
import functools
import hashlib
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from nodesmith.agent.disk.archive import OpenArchive
from nodesmith.agent.disk.space import Space
from nodesmith.agent.fetch.bandwidth import BandwidthLimit
from nodesmith.agent.fetch.images import Image, Images
from nodesmith.agent.fetch.partial_files import PartialFile
from nodesmith.agent.fetch.sources import Sources
from nodesmith.agent.fetch.transfer import TRY_ELSEWHERE, Blob, Transfer, TransferRules, combined_failure
from nodesmith.agent.operations.failures import OperationFailed, is_full
from nodesmith.agent.operations.job import Job
from nodesmith.agent.threads import Threads
from nodesmith.contracts.nats.messages import Command
from nodesmith.domain.operation import Phase, Reason
from nodesmith.gallery.oci import Reference, is_reference, read_reference

_ABANDONED_S = 86400
_LAYERS_AT_ONCE = 3
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORTH_KEEPING = frozenset({Reason.DOWNLOAD_FAILED, Reason.SOURCE_DOWN, Reason.SOURCE_DENIED, Reason.NODE_ERROR})


Consume = Callable[[list[OpenArchive]], None]


@dataclass(frozen=True)
class FetchPlan:
    """The blobs to fetch. `digest` is empty if it is not known before the download."""

    blobs: list[Blob]
    """in unpacking order; an image may contain the same layer twice"""
    digest: str
    is_image: bool
    is_unpacked: bool = True
    """false: the files are kept as they are, and need no space for their content"""


@dataclass(frozen=True)
class Fetched:
    """A verified artifact: one archive, or the layers of an image, lowest first."""

    digest: str
    files: list[Path]
    is_image: bool


@dataclass(frozen=True)
class DownloadLimits:
    idle: float
    tries: int
    bytes_a_second: int = 0
    require_digest: bool = False


class Downloads:
    """Fetches artifacts into one folder; one job at a time per blob."""

    def __init__(
        self, folder: Path, sources: Sources, images: Images, *, threads: Threads, space: Space, limits: DownloadLimits
    ) -> None:
        self._folder = folder
        self._sources = sources
        self._images = images
        self._threads = threads
        self._space = space
        self._limits = limits
        self._bandwidth = BandwidthLimit(limits.bytes_a_second)
        self._planned: dict[str, list[str]] = {}
        """op_id -> keys of the blobs that the operation has begun to fetch"""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def prune(self) -> None:
        """Delete partial files unused for a day."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            in_use = path.stem in self._locks and self._locks[path.stem].locked()
            if not in_use and time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()

    async def plan(self, command: Command) -> FetchPlan:
        """Resolve the uri; mirrors are used when the first source fails."""
        if is_reference(command.uri):
            return await self._plan_image(command)
        sha256 = hex_digest(command.sha256)
        if self._limits.require_digest and not sha256:
            raise OperationFailed(Reason.REFUSED_BY_NODE, "This node accepts no archive without a sha256 digest.")
        uris = [command.uri, *(mirror for mirror in command.mirrors if not is_reference(mirror))]
        sources = tuple(self._sources.find(uri) for uri in uris)
        return FetchPlan([Blob(_key(command), sha256, command.size, sources)], sha256, is_image=False)

    def plan_files(self, files: Iterable[tuple[str, str, int]]) -> FetchPlan:
        """Plan files (uri, sha256, size) that are kept as they are."""
        blobs = [Blob(sha256, sha256, size, (self._sources.find(uri),)) for uri, sha256, size in files]
        return FetchPlan(blobs, "", is_image=False, is_unpacked=False)

    @contextlib.asynccontextmanager
    async def fetched(self, job: Job, plan: FetchPlan, consume: Consume | None = None) -> AsyncIterator[Fetched]:
        """Fetch and yield the artifact; on a failure that a retry may cure, keep the partial files.

        `consume` reads the bytes in a thread during the download, before the digest is verified.
        """
        self._planned[job.command.op_id] = [blob.key for blob in plan.blobs]
        async with self._blob_locks(plan):
            transfers = [self._transfer(job, plan, blob) for blob in {blob.key: blob for blob in plan.blobs}.values()]
            partials = [each.partial for each in transfers]
            try:
                yield await self._fetch(job, plan, transfers, consume)
                self._planned.pop(job.command.op_id, None)
                with contextlib.suppress(OSError):  # no longer needed
                    await self._threads.run(job.halt, _each(partials, PartialFile.discard))
            except OperationFailed as why:
                if why.reason not in _WORTH_KEEPING:
                    _each(partials, PartialFile.discard)()
                raise
            except OSError as error:
                if is_full(error):
                    _each(partials, PartialFile.discard)()
                raise
            finally:
                _each(partials, PartialFile.close)()

    async def discard(self, command: Command) -> None:
        """Delete the partial files of an operation, unless another job is fetching the same blob."""
        for key in self._planned.pop(command.op_id, _keys(command)):
            if not self._locks[key].locked():
                PartialFile(self._path(key)).discard()

    # planning -------------------------------------------------------------------------------------------------

    async def _plan_image(self, command: Command) -> FetchPlan:
        references = [_pinned(uri, command) for uri in (command.uri, *command.mirrors) if is_reference(uri)]
        image = await self._find_image(references)
        ordered = sorted(references, key=lambda reference: reference != image.reference)
        blobs = [
            Blob(
                hex_digest(layer.digest),
                hex_digest(layer.digest),
                layer.size,
                tuple(self._images.layer(reference, layer) for reference in ordered),
            )
            for layer in image.layers
        ]
        return FetchPlan(blobs, hex_digest(image.digest), is_image=True)

    async def _find_image(self, references: list[Reference]) -> Image:
        failures: list[OperationFailed] = []
        for reference in references:
            try:
                return await self._images.find(reference)
            except OperationFailed as why:
                if why.reason not in TRY_ELSEWHERE:
                    raise
                failures.append(why)
        raise combined_failure(failures)

    # fetching -------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _blob_locks(self, plan: FetchPlan) -> AsyncIterator[None]:
        """Hold the locks of all blobs, acquired in one order so that jobs with common layers cannot deadlock."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted({blob.key for blob in plan.blobs}):
                await stack.enter_async_context(self._locks[key])
            yield

    async def _fetch(self, job: Job, plan: FetchPlan, transfers: list[Transfer], consume: Consume | None) -> Fetched:
        for transfer in transfers:
            await transfer.open()
        self._track_progress(job, transfers)
        missing = sum(max(each.blob.size - each.partial.size, 0) for each in transfers)
        self._required_space(plan)(sum(each.blob.size for each in transfers), missing)
        partials = {each.blob.key: each.partial for each in transfers}
        in_order = [partials[blob.key] for blob in plan.blobs]
        async with self._consuming(job, in_order, consume):
            await _run_limited(_LAYERS_AT_ONCE, [each.fetch for each in transfers])
            job.gauge.move(Phase.VERIFYING)
        digest = plan.digest or transfers[0].partial.digest
        return Fetched(digest, [each.path for each in in_order], plan.is_image)

    @contextlib.asynccontextmanager
    async def _consuming(self, job: Job, partials: list[PartialFile], consume: Consume | None) -> AsyncIterator[None]:
        """Run `consume` during the download; if the download fails, its error is raised, not the reader's."""
        if consume is None:
            yield
            return
        openers: list[OpenArchive] = [functools.partial(each.follow, job.halt) for each in partials]
        begun = [each.generation for each in partials]
        consuming = asyncio.create_task(self._threads.run(job.halt, consume, openers))
        try:
            yield
            _each(partials, PartialFile.finish)()
            job.gauge.move(Phase.EXTRACTING)
            await asyncio.wait([consuming])
            if [each.generation for each in partials] != begun:
                await self._threads.run(job.halt, consume, openers)
            else:
                await consuming
        finally:
            _each(partials, PartialFile.abort)()
            await asyncio.wait([consuming])
            _discard_exception(consuming)

    def _required_space(self, plan: FetchPlan) -> Callable[[int, int], None]:
        return self._space.require_for_archive if plan.is_unpacked else self._space.require_for_file

    def _transfer(self, job: Job, plan: FetchPlan, blob: Blob) -> Transfer:
        rules = TransferRules(self._limits.idle, self._limits.tries, self._space.require, self._required_space(plan))
        return Transfer(job, blob, self._path(blob.key), threads=self._threads, bandwidth=self._bandwidth, rules=rules)

    def _track_progress(self, job: Job, transfers: list[Transfer]) -> None:
        """Report the progress of all layers together; the total is known before the first byte."""

        def moved() -> None:
            done, total = sum(each.partial.size for each in transfers), sum(each.total for each in transfers)
            job.gauge.move(Phase.DOWNLOADING, done, total)

        for transfer in transfers:
            transfer.on_moved = moved
        moved()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.part"


async def _run_limited(number: int, jobs: list[Callable[[], Awaitable[None]]]) -> None:
    """Run at most `number` concurrently; the first failure cancels the others and is raised."""
    slots = asyncio.Semaphore(number)

    async def take_turn(work: Callable[[], Awaitable[None]]) -> None:
        async with slots:
            await work()

    tasks = [asyncio.create_task(take_turn(work)) for work in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _discard_exception(task: "asyncio.Task[None]") -> None:
    """Retrieve the task's exception so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _each(partials: list[PartialFile], act: Callable[[PartialFile], None]) -> Callable[[], None]:
    def run() -> None:
        for partial in partials:
            act(partial)

    return run


def hex_digest(digest: str) -> str:
    return digest.removeprefix("sha256:").lower()


def _pinned(uri: str, command: Command) -> Reference:
    """Pin the reference to the digest that the control plane resolved."""
    reference = read_reference(uri)
    if reference.digest or not _DIGEST.fullmatch(hex_digest(command.sha256)):
        return reference
    return reference.at(f"sha256:{hex_digest(command.sha256)}")


def _keys(command: Command) -> list[str]:
    """Return the file keys that a command fetches: an artifact, or the files of a model."""
    if command.load is None:
        return [_key(command)]
    return [file.sha256 for file in command.load.files if _DIGEST.fullmatch(file.sha256)]


def _key(command: Command) -> str:
    """Return the file key: the digest, or a hash of the request if the untrusted value is no valid digest."""
    wanted = hex_digest(command.sha256)
    if _DIGEST.fullmatch(wanted):
        return wanted
    return f"uri-{hashlib.sha256(f'{wanted} {command.uri}'.encode()).hexdigest()}"
