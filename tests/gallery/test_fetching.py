"""Galleries from real servers that answer well, badly, or not at all."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.galleries import FreshIndex, GalleryCopy, GalleryRequest
from contracts.sources import SourceAccess
from gallery import fetching
from gallery.addresses import SourceFailed, address, complaint
from gallery.fetching import COOLDOWN_S, Fetcher
from tests.gallery.site import Page, Site, serving

INDEX = b"- {name: tool, uri: registry.invalid/forge/tool:1}\n"
PAGE = b"<html><body>Please come back later</body></html>"


class Desk:
    """A fetcher with a clock that stands, and what an admin has set for every host."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.now = 1000.0
        self.access: SourceAccess | None = None

    async def access_to(self, _host: str) -> SourceAccess | None:
        return self.access

    async def read(
        self, gallery: GalleryRequest, copy: GalleryCopy | None = None, *, patient: bool = True, within: float = 20.0
    ) -> FreshIndex:
        fetcher = Fetcher(self.access_to, timeout=within, now=lambda: self.now)
        return await fetcher.read(gallery, copy, patient=patient)

    def gallery(self, *paths: str) -> GalleryRequest:
        first, *mirrors = (f"{self.site.url}{path}" for path in paths)
        return GalleryRequest(name="main", url=first, mirrors=mirrors)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def desk(site: Site) -> Desk:
    return Desk(site)


def copied(request: GalleryRequest, fresh: FreshIndex) -> GalleryCopy:
    return GalleryCopy(request, fresh.content or "", fresh.source, fresh.etag, fresh.cooling)


async def test_an_index_is_read_and_not_sent_again_while_it_is_the_same(desk: Desk, site: Site) -> None:
    site.pages["/index.yaml"] = Page(INDEX)
    gallery = desk.gallery("/index.yaml")
    first = await desk.read(gallery, None)
    assert (first.content, first.etag) == (INDEX.decode(), '"v1"')
    again = await desk.read(gallery, copied(gallery, first))
    assert (again.content, again.etag) == (None, '"v1"')
    site.pages["/index.yaml"] = Page(INDEX + b"- {name: new, uri: registry.invalid/a/b:1}\n", etag='"v2"')
    changed = await desk.read(gallery, copied(gallery, first))
    assert changed.etag == '"v2"'
    assert "new" in (changed.content or "")


BAD = {
    "an error": Page(b"no", status=500),
    "not found": Page(b"no", status=404),
    "a page instead": Page(PAGE),
    "no text": Page(b"\xff\xfe\x00"),
    "an empty list": Page(b"[]"),
    "nothing": Page(b""),
    "a redirect in a circle": Page(b"", status=302, location="/bad"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_mirror_steps_in_and_the_bad_source_is_left_alone_for_a_while(
    desk: Desk, site: Site, bad: Page
) -> None:
    site.pages.update({"/bad": bad, "/mirror": Page(INDEX)})
    gallery = desk.gallery("/bad", "/mirror")
    fresh = await desk.read(gallery, None)
    assert fresh.source.endswith("/mirror")
    assert list(fresh.cooling) == [gallery.url]
    asked = len(site.seen)
    await desk.read(gallery, copied(gallery, fresh))
    assert site.asked()[asked:] == ["/mirror"]
    desk.now += COOLDOWN_S + 1
    await desk.read(gallery, copied(gallery, fresh))
    assert "/bad" in site.asked()[asked + 1 :]


async def test_when_all_failed_all_are_asked_and_each_failure_is_told(desk: Desk, site: Site) -> None:
    site.pages.update({"/a": Page(b"", status=503), "/b": Page(PAGE)})
    gallery = desk.gallery("/a", "/b")
    with pytest.raises(SourceFailed, match=r"/a: answered 503.*; .*/b: It is not a list") as failed:
        await desk.read(gallery, None)
    copy = replace(copied(gallery, FreshIndex("", "", INDEX.decode(), {})), cooling=failed.value.cooling)
    site.pages["/b"] = Page(INDEX)
    fresh = await desk.read(gallery, copy)
    assert (fresh.source, list(fresh.cooling)) == (f"{site.url}/b", [f"{site.url}/a"])


async def test_a_person_who_asks_does_not_wait_for_the_cooldown(desk: Desk, site: Site) -> None:
    site.pages.update({"/a": Page(INDEX), "/b": Page(INDEX)})
    gallery = desk.gallery("/a", "/b")
    copy = GalleryCopy(gallery, "", "", "", {gallery.url: desk.now + 500})
    fresh = await desk.read(gallery, copy, patient=False)
    assert (fresh.source, fresh.cooling) == (gallery.url, {})


async def test_a_server_that_never_ends_is_given_up(desk: Desk, site: Site) -> None:
    site.pages["/slow"] = Page(INDEX, hangs=True)
    with pytest.raises(SourceFailed, match="no answer in time"):
        await desk.read(desk.gallery("/slow"), within=0.3)


async def test_an_index_without_end_is_not_held_in_memory(
    desk: Desk, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LARGEST", 10)
    site.pages["/big"] = Page(INDEX)
    with pytest.raises(SourceFailed, match="larger than 10 bytes"):
        await desk.read(desk.gallery("/big"), None)


async def test_what_is_set_for_the_host_is_used_and_never_told(desk: Desk, site: Site) -> None:
    site.pages["/private"] = Page(b"", status=401)
    desk.access = SourceAccess(host="h", username="ada", password="s3cret")
    with pytest.raises(SourceFailed) as failed:
        await desk.read(desk.gallery("/private"), None)
    assert site.seen[-1][1]["authorization"].startswith("Basic ")
    assert "s3cret" not in str(failed.value)


async def test_a_file_is_a_gallery_too(tmp_path: Path, desk: Desk) -> None:
    (tmp_path / "my index.yaml").write_bytes(
        b"\xef\xbb\xbf- {name: mine, uri: mine.tar.gz, sha256: " + b"a" * 64 + b"}"
    )
    gallery = GalleryRequest(name="main", url=(tmp_path / "my index.yaml").as_uri())
    fresh = await desk.read(gallery, None)
    assert (fresh.content or "").startswith("- {name: mine")
    with pytest.raises(SourceFailed, match="No such file"):
        await desk.read(GalleryRequest(name="main", url="file:///nowhere/index.yaml"), None)


def test_addresses_lead_somewhere_or_are_refused() -> None:
    found = address("github:forge/backends/lists/index.yaml@master")
    assert found == "https://raw.githubusercontent.com/forge/backends/master/lists/index.yaml"
    assert not any(complaint(url) for url in ("https://a.invalid/i", "file:///i", "github:a/b/c@d"))
    for url in ("ftp://a.invalid", "https://", "https://me:secret@a.invalid/i", "http://[", "index.yaml"):
        assert complaint(url)
        assert "secret" not in complaint(url)


async def test_a_pipe_is_no_gallery(tmp_path: Path, desk: Desk) -> None:
    """Nobody writes to it: opened as a file, it would hold a thread of the API without end."""
    os.mkfifo(tmp_path / "index.yaml")
    with pytest.raises(SourceFailed, match="not a regular file"):
        await desk.read(GalleryRequest(name="main", url=(tmp_path / "index.yaml").as_uri()), None)


async def test_a_ref_leads_to_the_file_beside_it(desk: Desk, site: Site) -> None:
    site.pages["/list/index.ref"] = Page(b"index-1.yaml\n")
    site.pages["/list/index-1.yaml"] = Page(INDEX)
    gallery = desk.gallery("/list/index.ref")
    first = await desk.read(gallery)
    assert (first.content, first.source) == (INDEX.decode(), gallery.url)
    again = await desk.read(gallery, copied(gallery, first))
    assert again.content is None, "neither has changed"
    site.pages["/list/index.ref"] = Page(b"index-2.yaml\n")
    site.pages["/list/index-2.yaml"] = Page(INDEX.replace(b"tool", b"other"))
    moved = await desk.read(gallery, copied(gallery, first))
    assert "other" in (moved.content or ""), "another file, though its ETag is the same"


@pytest.mark.parametrize(
    "name", [b"", b"../secret.yaml", b"/etc/passwd", b"https://elsewhere.invalid/x", b"a\nb", b"more.ref", b"x" * 300]
)
async def test_a_ref_that_leads_elsewhere_is_not_followed(desk: Desk, site: Site, name: bytes) -> None:
    site.pages["/list/index.ref"] = Page(name)
    for path in ("/secret.yaml", "/etc/passwd", "/list/more.ref"):
        site.pages[path] = Page(INDEX)
    with pytest.raises(SourceFailed, match="names no file beside it"):
        await desk.read(desk.gallery("/list/index.ref"))


async def test_a_ref_on_the_disk_is_followed_too(tmp_path: Path, desk: Desk) -> None:
    (tmp_path / "index.ref").write_text("real.yaml")
    (tmp_path / "real.yaml").write_bytes(INDEX)
    gallery = GalleryRequest(name="main", url=(tmp_path / "index.ref").as_uri())
    assert (await desk.read(gallery)).content == INDEX.decode()
