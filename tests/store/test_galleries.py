"""Galleries and uploads in PostgreSQL."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from nodesmith.domain.errors import GalleryExists, UploadExists
from nodesmith.domain.gallery import FreshIndex, GallerySettings, IndexProof, Upload
from nodesmith.domain.gallery_trust import GalleryPolicy
from nodesmith.store.catalogue.galleries import GalleryTable, UploadTable
from nodesmith.store.database import Database
from tests.store.clock import SetClock

FRESH = FreshIndex("https://files.invalid/a", '"v1"', "- name: a", {})


@pytest.fixture
def galleries(database: Database, clock: SetClock) -> GalleryTable:
    return GalleryTable(database, clock=clock)


@pytest.fixture
def uploads(database: Database, clock: SetClock) -> UploadTable:
    return UploadTable(database, clock=clock)


def asked(name: str) -> GallerySettings:
    return GallerySettings(name=name, url="https://files.invalid/a", mirrors=["https://mirror.invalid/a"])


async def test_galleries_are_listed_in_the_order_in_which_they_were_added(galleries: GalleryTable) -> None:
    for name in ("order-z", "order-a"):
        await galleries.add(asked(name), FRESH, by="ada")
    names = [view.name for view in await galleries.list() if view.name.startswith("order")]
    assert names == ["order-z", "order-a"]
    view = next(view for view in await galleries.list() if view.name == "order-z")
    assert (view.source, view.created_by, view.mirrors) == (FRESH.source, "ada", ["https://mirror.invalid/a"])


async def test_a_name_is_taken_once(galleries: GalleryTable) -> None:
    await galleries.add(asked("once"), FRESH, by="ada")
    with pytest.raises(GalleryExists):
        await galleries.add(asked("once"), FRESH, by="bob")
    assert await galleries.remove("once")
    assert not await galleries.remove("once")


async def test_a_failure_keeps_the_copy_and_an_unchanged_answer_too(galleries: GalleryTable) -> None:
    await galleries.add(asked("kept"), FRESH, by="ada")
    before = await galleries.state()
    await galleries.failed("kept", "down", {"https://files.invalid/a": 1.5})
    copy = (await galleries.copies("kept"))[0]
    assert (copy.content, copy.etag, copy.cooling) == ("- name: a", '"v1"', {"https://files.invalid/a": 1.5})
    await galleries.refreshed("kept", FreshIndex(FRESH.source, '"v1"', None, {}))
    assert (await galleries.copies("kept"))[0].content == "- name: a"
    assert await galleries.state() == before
    await galleries.refreshed("kept", FreshIndex(FRESH.source, '"v2"', "- name: b", {}))
    assert await galleries.state() != before


def proven(version: int, *, root: int = 1) -> FreshIndex:
    proof = IndexProof(root, version, datetime.now(UTC), {"root": f"{root}"}, 1, "a" * 64)
    return FreshIndex(FRESH.source, "", f"- name: v{version}", {}, proof)


async def test_of_two_readings_at_once_the_older_signed_index_never_wins(galleries: GalleryTable) -> None:
    await galleries.add(asked("signed"), proven(2), by="ada")
    for fresh, kept in ((proven(3), 3), (proven(2), 3), (proven(1, root=2), 1), (proven(9), 1)):
        await galleries.refreshed("signed", fresh)
        copy = (await galleries.copies("signed"))[0]
        assert (copy.index_version, copy.content) == (kept, f"- name: v{kept}")
    view = next(view for view in await galleries.list() if view.name == "signed")
    assert (view.index_version, view.policy, view.signed_index) == (1, "digest", False)


async def test_trust_is_replaced_together_with_what_was_read_under_it(galleries: GalleryTable) -> None:
    await galleries.add(asked("trust"), proven(5), by="ada")
    before = await galleries.state()
    request = replace(asked("trust"), policy=GalleryPolicy.SIGNED, keys=["k"], root="{}")
    await galleries.trust(request, proven(1))
    assert await galleries.state() != before
    copy = (await galleries.copies("trust"))[0]
    assert copy.settings == request
    assert (copy.index_version, copy.metadata) == (1, {"root": "1"})


async def test_of_many_replicas_one_reads_a_gallery_again(galleries: GalleryTable, clock: SetClock) -> None:
    await galleries.add(asked("due"), FRESH, by="ada")
    clock.forward(seconds=7200)
    claims = await asyncio.gather(*(galleries.claim(older_than=timedelta(hours=1)) for _ in range(8)))
    assert [copy.settings.name for claim in claims for copy in claim].count("due") == 1
    assert not [copy for copy in await galleries.claim(older_than=timedelta(hours=1)) if copy.settings.name == "due"]


async def test_a_version_is_uploaded_once_in_whatever_spelling(galleries: GalleryTable, uploads: UploadTable) -> None:
    before = await galleries.state()
    mine = Upload(name="My/Tool", version="1", uri="/artifacts/tool-1.tar.gz", sha256="a" * 64, size=3)
    kept = await uploads.add(mine, by="ada")
    assert kept in await uploads.list()
    assert await galleries.state() != before
    with pytest.raises(UploadExists):
        await uploads.add(replace(mine, name="my__tool"), by="bob")
    assert await uploads.uses(mine.uri)
    assert await uploads.remove("MY/TOOL", "1") == kept
    assert await uploads.remove("my/tool", "1") is None
    assert not await uploads.uses(mine.uri)
