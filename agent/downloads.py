"""Downloads that go on where they broke off: partial files are keyed by the digest of what they will be."""

import asyncio
import contextlib
import functools
import hashlib
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from agent.archive import OpenArchive
from agent.failures import OperationFailed, is_full
from agent.images import Image, Images
from agent.job import Job
from agent.pace import Pace
from agent.partial import Partial
from agent.sources import Sources
from agent.space import Space
from agent.threads import Threads
from agent.transfer import TRY_ELSEWHERE, Blob, Rules, Transfer, said_together
from contracts.messages import Command
from domain.operation import Phase, Reason
from gallery.oci import Reference, is_reference, read_reference

_ABANDONED_S = 86400
_LAYERS_AT_ONCE = 3
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORTH_KEEPING = frozenset({Reason.DOWNLOAD_FAILED, Reason.SOURCE_DOWN, Reason.SOURCE_DENIED, Reason.NODE_ERROR})


Consume = Callable[[list[OpenArchive]], None]


@dataclass(frozen=True)
class Plan:
    """What has to be fetched. `digest` is known before only for what is named by it."""

    blobs: list[Blob]
    """in the order of unpacking; an image may hold the same layer twice"""
    digest: str
    is_image: bool


@dataclass(frozen=True)
class Fetched:
    """The whole artifact, verified: one archive, or the layers of an image with the lowest first."""

    digest: str
    files: list[Path]
    is_image: bool


@dataclass(frozen=True)
class Limits:
    idle: float
    tries: int
    bytes_a_second: int = 0
    require_digest: bool = False


class Downloads:
    """Fetches artifacts into one folder, each blob by one job at a time."""

    def __init__(
        self, folder: Path, sources: Sources, images: Images, *, threads: Threads, space: Space, limits: Limits
    ) -> None:
        self._folder = folder
        self._sources = sources
        self._images = images
        self._threads = threads
        self._space = space
        self._limits = limits
        self._pace = Pace(limits.bytes_a_second)
        self._planned: dict[str, list[str]] = {}
        """operation -> the blobs that it has begun to fetch"""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def tidy(self) -> None:
        """Drop what nobody has asked for in a day."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            in_use = path.stem in self._locks and self._locks[path.stem].locked()
            if not in_use and time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()

    async def plan(self, command: Command) -> Plan:
        """Find out what the uri stands for; a mirror answers when the first place does not."""
        if is_reference(command.uri):
            return await self._plan_image(command)
        sha256 = bare(command.sha256)
        if self._limits.require_digest and not sha256:
            raise OperationFailed(Reason.REFUSED_BY_NODE, "This node takes no archive without a sha256 digest.")
        uris = [command.uri, *(mirror for mirror in command.mirrors if not is_reference(mirror))]
        places = tuple(self._sources.find(uri) for uri in uris)
        return Plan([Blob(_key(command), sha256, command.size, places)], sha256, is_image=False)

    @contextlib.asynccontextmanager
    async def fetched(self, job: Job, plan: Plan, consume: Consume | None = None) -> AsyncIterator[Fetched]:
        """The artifact; what came is kept when the block fails in a way that another try may cure.

        `consume` reads it in a thread while it comes; the digest is known only afterwards.
        """
        self._planned[job.command.op_id] = [blob.key for blob in plan.blobs]
        async with self._holding(plan):
            transfers = [self._transfer(job, blob) for blob in {blob.key: blob for blob in plan.blobs}.values()]
            partials = [each.partial for each in transfers]
            try:
                yield await self._fetch(job, plan, transfers, consume)
                self._planned.pop(job.command.op_id, None)
                with contextlib.suppress(OSError):  # they have served their purpose
                    await self._threads.run(job.halt, _each(partials, Partial.discard))
            except OperationFailed as why:
                if why.reason not in _WORTH_KEEPING:
                    _each(partials, Partial.discard)()
                raise
            except OSError as error:
                if is_full(error):
                    _each(partials, Partial.discard)()
                raise
            finally:
                _each(partials, Partial.leave)()

    async def discard(self, command: Command) -> None:
        """Throw away what was kept, unless another job fetches the same right now."""
        for key in self._planned.pop(command.op_id, [_key(command)]):
            if not self._locks[key].locked():
                Partial(self._path(key)).discard()

    # what to fetch --------------------------------------------------------------------------------------------

    async def _plan_image(self, command: Command) -> Plan:
        references = [_pinned(uri, command) for uri in (command.uri, *command.mirrors) if is_reference(uri)]
        image = await self._find_image(references)
        ordered = sorted(references, key=lambda reference: reference != image.reference)
        blobs = [
            Blob(
                bare(layer.digest),
                bare(layer.digest),
                layer.size,
                tuple(self._images.layer(reference, layer) for reference in ordered),
            )
            for layer in image.layers
        ]
        return Plan(blobs, bare(image.digest), is_image=True)

    async def _find_image(self, references: list[Reference]) -> Image:
        failures: list[OperationFailed] = []
        for reference in references:
            try:
                return await self._images.find(reference)
            except OperationFailed as why:
                if why.reason not in TRY_ELSEWHERE:
                    raise
                failures.append(why)
        raise said_together(failures)

    # fetching -------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _holding(self, plan: Plan) -> AsyncIterator[None]:
        """In one order for all jobs, so that two with common layers never wait for each other."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted({blob.key for blob in plan.blobs}):
                await stack.enter_async_context(self._locks[key])
            yield

    async def _fetch(self, job: Job, plan: Plan, transfers: list[Transfer], consume: Consume | None) -> Fetched:
        for transfer in transfers:
            await transfer.open()
        self._tell(job, transfers)
        missing = sum(max(each.blob.size - each.partial.size, 0) for each in transfers)
        self._space.require_for_archive(sum(each.blob.size for each in transfers), missing)
        partials = {each.blob.key: each.partial for each in transfers}
        in_order = [partials[blob.key] for blob in plan.blobs]
        async with self._consuming(job, in_order, consume):
            await _at_most(_LAYERS_AT_ONCE, [each.fetch for each in transfers])
            job.gauge.move(Phase.VERIFYING)
        digest = plan.digest or transfers[0].partial.digest
        return Fetched(digest, [each.path for each in in_order], plan.is_image)

    @contextlib.asynccontextmanager
    async def _consuming(self, job: Job, partials: list[Partial], consume: Consume | None) -> AsyncIterator[None]:
        """What the bytes are read for goes on beside the download; a download that fails says why, not its reader."""
        if consume is None:
            yield
            return
        openers: list[OpenArchive] = [functools.partial(each.follow, job.halt) for each in partials]
        begun = [each.generation for each in partials]
        consuming = asyncio.create_task(self._threads.run(job.halt, consume, openers))
        try:
            yield
            _each(partials, Partial.finish)()
            job.gauge.move(Phase.EXTRACTING)
            await asyncio.wait([consuming])
            if [each.generation for each in partials] != begun:
                await self._threads.run(job.halt, consume, openers)
            else:
                await consuming
        finally:
            _each(partials, Partial.give_up)()
            await asyncio.wait([consuming])
            _look_at(consuming)

    def _transfer(self, job: Job, blob: Blob) -> Transfer:
        rules = Rules(self._limits.idle, self._limits.tries, self._space.require, self._space.require_for_archive)
        return Transfer(job, blob, self._path(blob.key), threads=self._threads, pace=self._pace, rules=rules)

    def _tell(self, job: Job, transfers: list[Transfer]) -> None:
        """The gauge shows all layers together; the whole is known before the first byte is."""

        def moved() -> None:
            done, total = sum(each.partial.size for each in transfers), sum(each.total for each in transfers)
            job.gauge.move(Phase.DOWNLOADING, done, total)

        for transfer in transfers:
            transfer.on_moved = moved
        moved()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.part"


async def _at_most(number: int, works: list[Callable[[], Awaitable[None]]]) -> None:
    """A few at once; the first failure stops the others and is ours."""
    slots = asyncio.Semaphore(number)

    async def take_turn(work: Callable[[], Awaitable[None]]) -> None:
        async with slots:
            await work()

    tasks = [asyncio.create_task(take_turn(work)) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _look_at(task: "asyncio.Task[None]") -> None:
    """What it raised does not count."""
    if not task.cancelled():
        task.exception()


def _each(partials: list[Partial], act: Callable[[Partial], None]) -> Callable[[], None]:
    def run() -> None:
        for partial in partials:
            act(partial)

    return run


def bare(digest: str) -> str:
    return digest.removeprefix("sha256:").lower()


def _pinned(uri: str, command: Command) -> Reference:
    """By digest, when the control plane has resolved the tag."""
    reference = read_reference(uri)
    if reference.digest or not _DIGEST.fullmatch(bare(command.sha256)):
        return reference
    return reference.at(f"sha256:{bare(command.sha256)}")


def _key(command: Command) -> str:
    """The digest; it comes over the wire, so whatever else it holds becomes a harmless name."""
    wanted = bare(command.sha256)
    if _DIGEST.fullmatch(wanted):
        return wanted
    return f"uri-{hashlib.sha256(f'{wanted} {command.uri}'.encode()).hexdigest()}"
