"""Upgrades: compares the builds that nodes have with the galleries and with the majority of the fleet.

Computed on read, from tables that all replicas share; only the digests of tags are fetched beforehand.
The galleries are not filtered by the hardware of the API's machine, because it runs no backends.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.identity import family_of
from nodesmith.domain.installed import Installation
from nodesmith.domain.inventory import DifferingNode
from nodesmith.domain.kinds import Kind
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.entries import DEVELOPMENT, Entry
from nodesmith.services.requested_work import RequestedBackend

log = structlog.stdlib.get_logger(__name__)

ACTOR = "automatic upgrade"
CHECK_INTERVAL_S = 60.0
FIRST_CHECK_S = 10.0
_CONCURRENCY = 8


@dataclass(frozen=True, kw_only=True)
class AvailableUpgrade:
    """The version that most nodes have, the gallery's version, and the nodes that differ."""

    backend_name: str
    installed_version: str
    available_version: str
    installed_digest: str = ""
    available_digest: str = ""
    node_drift: Sequence[DifferingNode] = ()
    """nodes that differ from the majority"""
    family: str = ""
    nodes: Sequence[str] = ()
    """names of the nodes that an upgrade would change"""
    checked_at: datetime | None = None
    """when the registry was last asked; None if the gallery itself states the version"""


class InstalledBuilds(Protocol):
    async def list(self) -> Sequence[Installation]: ...


class Tags(Protocol):
    """The digests of tags when their registries were last asked."""

    async def known(self) -> Mapping[str, tuple[str, datetime]]: ...
    async def note(self, reference: str, digest: str) -> None: ...


class Registries(Protocol):
    def is_reference(self, uri: str) -> bool: ...
    async def digest(self, uri: str) -> str | None: ...


Ask = Callable[[Kind, str, RequestedBackend, str], Awaitable[None]]


@dataclass(frozen=True)
class Upgrades:
    catalogue: Catalogue
    installations: InstalledBuilds
    tags: Tags
    registries: Registries
    clock: Callable[[], datetime]
    check_every: timedelta
    ask: Ask | None = None
    """admits an upgrade; None disables automatic upgrades"""
    first_check_s: float = FIRST_CHECK_S
    check_interval_s: float = CHECK_INTERVAL_S

    async def list(self) -> dict[str, AvailableUpgrade]:
        """Backend name -> its available upgrade."""
        known = await self.tags.known()
        found = (self._compare(group, known) for group in grouped(await self.installations.list()).values())
        return {info.backend_name: info for info in found if info is not None}

    async def check(self, *, older_than: timedelta = timedelta(0)) -> None:
        """Fetch the current digests of the tags of installed backends; a registry that fails is skipped."""
        known = await self.tags.known()
        limit = self.clock() - older_than
        entries = (self._entry(group) for group in grouped(await self.installations.list()).values())
        references = {entry.artifact.uri for entry in entries if entry and self._is_tagged(entry)}
        due = [each for each in references if each not in known or known[each][1] <= limit]
        slots = asyncio.Semaphore(_CONCURRENCY)
        await asyncio.gather(*(self._ask_registry(reference, slots) for reference in due))

    async def run(self) -> None:
        """Background loop: check the tags on schedule, and run automatic upgrades if enabled."""
        await asyncio.sleep(self.first_check_s)
        while True:
            try:
                await self.check(older_than=self.check_every)
                await self.upgrade_all()
            except NodesmithError as error:
                log.info("upgrades.not_checked", error=error.message)
            await asyncio.sleep(self.check_interval_s)

    async def _ask_registry(self, reference: str, slots: asyncio.Semaphore) -> None:
        async with slots:
            if digest := await self.registries.digest(reference):
                await self.tags.note(reference, digest)

    async def upgrade_all(self) -> None:
        """Admit every available upgrade, if automatic upgrades are enabled."""
        if self.ask is None:
            return
        for info in (await self.list()).values():
            request = RequestedBackend(backend=info.backend_name, reason="a newer build is in the gallery")
            for node in info.nodes:
                # The idempotency key names the build, so that a failed upgrade is not admitted again and again.
                key = f"{info.backend_name}:{node}:{info.available_version}:{info.available_digest}"
                await self.ask(Kind.UPGRADE, node, request, key)

    def _entry(self, group: Sequence[Installation]) -> Entry | None:
        entry = self.catalogue.find(group[0].installed.name)
        return entry if entry and not entry.is_meta else None

    def _is_tagged(self, entry: Entry) -> bool:
        return not entry.artifact.version and self.registries.is_reference(entry.artifact.uri)

    def _compare(
        self, group: Sequence[Installation], known: Mapping[str, tuple[str, datetime]]
    ) -> AvailableUpgrade | None:
        entry = self._entry(group)
        if entry is None:
            return None
        builds = Counter((_version(each), _digest(each)) for each in group)
        usual = builds.most_common(1)[0][0]
        digest, checked_at = self._available_digest(entry, known)
        behind = [each for each in group if _is_behind(each, entry.artifact.version, digest)]
        drifting = [each for each in group if (_version(each), _digest(each)) != usual]
        if not behind and not drifting:
            return None
        return AvailableUpgrade(
            backend_name=group[0].installed.name,
            installed_version=usual[0],
            available_version=entry.artifact.version,
            installed_digest=usual[1],
            available_digest=digest,
            node_drift=[_drift(each) for each in drifting],
            family=entry.artifact.family,
            nodes=[each.node_name for each in behind or drifting],
            checked_at=checked_at,
        )

    def _available_digest(self, entry: Entry, known: Mapping[str, tuple[str, datetime]]) -> tuple[str, datetime | None]:
        if self._is_tagged(entry):
            return known.get(entry.artifact.uri, ("", None))
        return entry.artifact.sha256, None


def grouped(installations: Sequence[Installation]) -> dict[str, list[Installation]]:
    """Group by build name. On a node with the development variant, the stable build is ignored."""
    names = {(each.node_id, family_of(each.installed.name)) for each in installations}
    groups: dict[str, list[Installation]] = defaultdict(list)
    for each in installations:
        name = family_of(each.installed.name)
        has_development = (each.node_id, f"{name}{DEVELOPMENT}") in names
        if not each.installed.is_system and not each.installed.is_meta and not has_development:
            groups[name].append(each)
    return groups


def _is_behind(each: Installation, version: str, digest: str) -> bool:
    if version:
        return _version(each) != version
    return bool(digest) and _digest(each) != digest.removeprefix("sha256:")


def _version(each: Installation) -> str:
    return each.installed.version


def _digest(each: Installation) -> str:
    return each.installed.digest.removeprefix("sha256:")


def _drift(each: Installation) -> DifferingNode:
    return DifferingNode(
        node_id=each.node_id, node_name=each.node_name, version=_version(each), digest=each.installed.digest
    )
