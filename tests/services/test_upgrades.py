"""Upgrades over the fleet: majority, drift, versions, digests of tags, development variants."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.domain.installed import Installation, InstalledBackend
from nodesmith.domain.kinds import Kind
from nodesmith.gallery import oci
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.index import read_index
from nodesmith.services.catalogue.upgrades import Upgrades
from nodesmith.services.requested_work import RequestedBackend
from tests.deadlines import HANGS_S
from tests.gallery import wild
from tests.store.clock import SetClock

NOW = datetime(2026, 11, 16, tzinfo=UTC)
OLD, NEW = ("sha256:" + letter * 64 for letter in "ab")
ENGINE = "registry.invalid/forge/backends:latest-gpu-cuda12-engine"
VERSIONED = "- {name: tool, version: '2', uri: registry.invalid/a/tool:2}\n"


@dataclass
class SimulatedFleet:
    installed: list[Installation] = field(default_factory=list)

    async def list(self) -> Sequence[Installation]:
        return self.installed


@dataclass
class SimulatedTags:
    digests: dict[str, tuple[str, datetime]] = field(default_factory=dict)

    async def known(self) -> Mapping[str, tuple[str, datetime]]:
        return self.digests

    async def note(self, reference: str, digest: str) -> None:
        self.digests[reference] = (digest, NOW)


@dataclass
class SimulatedRegistries:
    tags: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def is_reference(self, uri: str) -> bool:
        return oci.is_reference(uri)

    async def digest(self, uri: str) -> str | None:
        self.asked.append(uri)
        return self.tags.get(uri)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue(read_index(wild.backend("engine") + VERSIONED, gallery="wild").entries)


def fleet_of(catalogue: Catalogue, *installed: Installation, tag: str = "") -> Upgrades:
    tags = SimulatedTags({ENGINE: (tag, NOW)} if tag else {})
    fleet = SimulatedFleet(list(installed))
    return Upgrades(catalogue, fleet, tags, SimulatedRegistries(), lambda: NOW, timedelta(hours=6))


def on(node: str, name: str, version: str = "", digest: str = "", *, is_meta: bool = False) -> Installation:
    return Installation(
        node, node, "healthy", InstalledBackend(name=name, version=version, digest=digest, is_meta=is_meta)
    )


async def test_other_gallery_version_is_an_upgrade_for_nodes_without_it(catalogue: Catalogue) -> None:
    upgrades = await fleet_of(catalogue, on("n1", "tool", "1"), on("n2", "tool", "1"), on("n3", "tool", "2")).list()
    reported = upgrades["tool"]
    assert (reported.installed_version, reported.available_version, reported.nodes) == ("1", "2", ["n1", "n2"])
    assert [drift.node_name for drift in reported.node_drift] == ["n3"]


async def test_a_node_that_does_not_say_its_version_is_behind(catalogue: Catalogue) -> None:
    assert (await fleet_of(catalogue, on("n1", "Tool")).list())["Tool"].nodes == ["n1"]


async def test_without_versions_the_digest_of_the_tag_decides(catalogue: Catalogue) -> None:
    """Contract 6.4, and #11024: not filtered by the hardware of the control plane, which has no GPU."""
    n1, n2 = on("n1", "cuda12-engine", digest=OLD), on("n2", "cuda12-engine", digest=OLD)
    assert await fleet_of(catalogue, n1, n2, tag=OLD).list() == {}
    reported = (await fleet_of(catalogue, n1, n2, tag=NEW).list())["cuda12-engine"]
    assert (reported.installed_digest, reported.available_digest) == (OLD.removeprefix("sha256:"), NEW)
    assert (reported.nodes, reported.checked_at, reported.family) == (["n1", "n2"], NOW, "engine")


async def test_a_registry_that_was_not_reached_proves_nothing(catalogue: Catalogue) -> None:
    assert await fleet_of(catalogue, on("n1", "cuda12-engine", digest=OLD)).list() == {}


async def test_drift_is_reported_without_a_newer_version(catalogue: Catalogue) -> None:
    nodes = [on("n1", "cuda12-engine", digest=OLD), on("n2", "cuda12-engine", digest=NEW)]
    nodes.append(on("n3", "cuda12-engine", digest=OLD))
    reported = (await fleet_of(catalogue, *nodes).list())["cuda12-engine"]
    assert [(drift.node_name, drift.digest) for drift in reported.node_drift] == [("n2", NEW)]
    assert reported.nodes == ["n2"]


async def test_builds_for_other_hardware_are_no_drift(catalogue: Catalogue) -> None:
    both = [on("n1", "cuda12-engine", digest=OLD), on("n2", "rocm-engine", digest=NEW)]
    assert await fleet_of(catalogue, *both, tag=OLD).list() == {}


async def test_stable_build_is_ignored_beside_its_development_variant(catalogue: Catalogue) -> None:
    """#9736: an automatic upgrade must not bring the stable build back over an installed development one."""
    both = [on("n1", "cuda12-engine", digest=OLD), on("n1", "cuda12-engine-development", digest=OLD)]
    assert await fleet_of(catalogue, *both, tag=NEW).list() == {}
    other = on("n2", "cuda12-engine", digest=OLD)
    assert (await fleet_of(catalogue, *both, other, tag=NEW).list())["cuda12-engine"].nodes == ["n2"]


async def test_metas_and_backends_without_gallery_are_ignored(catalogue: Catalogue) -> None:
    meta = on("n1", "engine", digest=OLD, is_meta=True)
    assert await fleet_of(catalogue, on("n1", "home-made", "1"), meta, on("n2", "engine"), tag=NEW).list() == {}


async def test_registries_are_asked_for_installed_tags_only_and_in_time(catalogue: Catalogue) -> None:
    registries = SimulatedRegistries({ENGINE: NEW})
    fleet = fleet_of(catalogue, on("n1", "cuda12-engine", digest=OLD), on("n1", "tool", "2"))
    upgrades = replace(fleet, registries=registries)
    await upgrades.check()
    assert registries.asked == [ENGINE]
    assert (await upgrades.list())["cuda12-engine"].available_digest == NEW
    await upgrades.check(older_than=timedelta(hours=6))
    assert registries.asked == [ENGINE]
    await upgrades.check()
    assert registries.asked == [ENGINE, ENGINE]


async def test_automatic_upgrades_are_off_by_default(catalogue: Catalogue) -> None:
    asked: list[tuple[Kind, str, str, str]] = []

    async def ask(kind: Kind, node: str, request: RequestedBackend, key: str) -> None:
        asked.append((kind, node, request.backend, key))

    fleet = fleet_of(catalogue, on("n1", "tool", "1"))
    await fleet.upgrade_all()
    assert not asked
    await replace(fleet, ask=ask).upgrade_all()
    await replace(fleet, ask=ask).upgrade_all()
    assert asked == [(Kind.UPGRADE, "n1", "tool", "tool:n1:2:")] * 2


async def test_the_loop_asks_again_in_time_and_survives_an_outage(catalogue: Catalogue) -> None:
    """Background loop: a registry is asked once a period, however often the loop runs."""
    clock, looked = SetClock(NOW), asyncio.Event()

    class Outage(SimulatedFleet):
        """Fails at the first call, and signals the later ones."""

        looks = 0

        async def list(self) -> Sequence[Installation]:
            self.looks += 1
            looked.set()
            if self.looks == 1:
                raise ServiceUnavailable("PostgreSQL does not answer.")
            return self.installed

    fleet, registries = Outage([on("n1", "cuda12-engine", digest=OLD)]), SimulatedRegistries({ENGINE: NEW})
    upgrades = Upgrades(
        catalogue, fleet, SimulatedTags(), registries, clock, timedelta(hours=6), first_check_s=0, check_interval_s=0
    )
    running = asyncio.create_task(upgrades.run())

    async def looks(number: int) -> None:
        async with asyncio.timeout(HANGS_S):
            while fleet.looks < number:
                looked.clear()
                await looked.wait()

    await looks(8)
    assert registries.asked == [ENGINE]
    clock.forward(seconds=6 * 3600)
    await looks(fleet.looks + 2)
    running.cancel()
    assert registries.asked[:2] == [ENGINE, ENGINE]
    assert (await upgrades.list())["cuda12-engine"].available_digest == NEW
