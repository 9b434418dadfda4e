"""Background refresh of galleries: on schedule, by one replica, from a source that answers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest

from nodesmith.domain.gallery import Gallery, GallerySettings
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.index_reader import COOLDOWN_S, IndexReader
from nodesmith.services.catalogue.galleries import Galleries
from nodesmith.store.catalogue.galleries import GalleryTable, UploadTable
from nodesmith.store.database import Database
from tests.deadlines import HANGS_S
from tests.gallery.site import Page, Site, serving
from tests.services.conftest import no_access
from tests.sources import LOCAL
from tests.store.clock import SetClock

TURN = timedelta(hours=1)
LOOK_S = 0.01


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def replica(database: Database, clock: SetClock) -> Galleries:
    return Galleries(
        table=GalleryTable(database, clock=clock),
        uploads=UploadTable(database),
        reader=IndexReader(no_access, LOCAL, now=lambda: clock().timestamp()),
        catalogue=Catalogue([]),
        builtin=[],
        refresh_every=TURN,
        clock=clock,
        sync_interval_s=LOOK_S,
    )


@pytest.fixture
async def galleries(database: Database, clock: SetClock, site: Site) -> AsyncIterator[Galleries]:
    """One gallery `main` with a mirror, read once."""
    site.pages["/main"] = site.pages["/mirror"] = index("first")
    galleries = replica(database, clock)
    request = GallerySettings(name="main", url=f"{site.url}/main", mirrors=[f"{site.url}/mirror"])
    await galleries.add(request, by="test")
    site.seen.clear()
    yield galleries
    await galleries.remove("main")


def index(name: str) -> Page:
    return Page(f"- {{name: {name}, uri: registry.invalid/forge/{name}:1}}\n".encode(), etag=f'"{name}"')


@asynccontextmanager
async def looking(*replicas: Galleries) -> AsyncIterator[None]:
    """Run the background loops of the replicas."""
    loops = [asyncio.create_task(each.run()) for each in replicas]
    try:
        yield
    finally:
        for loop in loops:
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop


async def turn(galleries: Galleries, clock: SetClock, *, seconds: float = 3601) -> Gallery:
    """Advance the clock, and wait until the gallery was read."""
    due = clock.forward(seconds=seconds)
    view = await seen(galleries, lambda view: view.fetched_at == due)
    await galleries.sync()
    return view


async def seen(galleries: Galleries, condition: Callable[[Gallery], bool]) -> Gallery:
    async with asyncio.timeout(HANGS_S):
        while True:
            view = await galleries.find("main")
            if condition(view):
                return view
            await asyncio.sleep(LOOK_S)


async def test_gallery_is_refreshed_on_schedule_and_not_before(
    galleries: Galleries, clock: SetClock, site: Site
) -> None:
    site.pages["/main"] = index("second")
    async with looking(galleries):
        clock.forward(seconds=3500)
        for _ in range(5):
            assert not await galleries.table.claim(older_than=TURN)
            await asyncio.sleep(LOOK_S)
        assert site.asked() == []
        assert galleries.catalogue.find("second") is None
        await turn(galleries, clock, seconds=101)
    assert site.asked() == ["/main"]
    assert site.seen[0][1]["If-None-Match"] == '"first"'
    assert galleries.catalogue.find("second")


async def test_one_of_two_replicas_reads_a_gallery_and_both_use_it(
    galleries: Galleries, database: Database, clock: SetClock, site: Site
) -> None:
    other = replica(database, clock)
    clock.forward(seconds=3601)
    claimed = await asyncio.gather(*(each.table.claim(older_than=TURN) for each in (galleries, other)))
    assert sorted(map(len, claimed)) == [0, 1]
    site.pages["/main"] = index("second")
    async with looking(galleries, other):
        await turn(galleries, clock)
        await seen(galleries, lambda _: all(each.catalogue.find("second") for each in (galleries, other)))
    assert site.asked() == ["/main"]


async def test_failed_source_is_not_asked_during_its_back_off(
    galleries: Galleries, clock: SetClock, site: Site
) -> None:
    galleries.refresh_every = timedelta(seconds=COOLDOWN_S / 3)
    site.pages["/main"], site.pages["/mirror"] = Page(b"", 503), index("mirrored")
    async with looking(galleries):
        view = await turn(galleries, clock, seconds=COOLDOWN_S / 3 + 1)
        assert (view.source, view.error) == (f"{site.url}/mirror", "")
        assert site.asked() == ["/main", "/mirror"]
        await turn(galleries, clock, seconds=COOLDOWN_S / 3 + 1)
        assert site.asked()[2:] == ["/mirror"], "the one that failed is not asked"
        site.pages["/main"] = index("back")
        view = await turn(galleries, clock, seconds=COOLDOWN_S)
    assert site.asked()[3:] == ["/main"]
    assert view.source == f"{site.url}/main"
    assert galleries.catalogue.find("back")


async def test_copy_stays_when_every_source_fails_and_refresh_is_retried(
    galleries: Galleries, clock: SetClock, site: Site
) -> None:
    site.pages["/main"] = site.pages["/mirror"] = Page(b"<html>maintenance</html>")
    async with looking(galleries):
        clock.forward(seconds=3601)
        view = await seen(galleries, lambda view: bool(view.error))
        assert "It is not a list" in view.error
        assert galleries.catalogue.find("first")
        site.pages["/mirror"] = index("second")
        view = await turn(galleries, clock)
    assert view.error == ""
    assert galleries.catalogue.find("second")
