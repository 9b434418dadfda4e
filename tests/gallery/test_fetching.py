"""Reading galleries from real servers that respond correctly, wrongly, or not at all."""

import gzip
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.domain.gallery import FreshIndex, GalleryCopy, GallerySettings
from nodesmith.gallery import index_reader
from nodesmith.gallery.addresses import SourceFailed, address, complaint
from nodesmith.gallery.index_reader import COOLDOWN_S, IndexReader
from tests.gallery.site import Page, Site, serving
from tests.sources import LOCAL

INDEX = b"- {name: tool, uri: registry.invalid/forge/tool:1}\n"
PAGE = b"<html><body>Please come back later</body></html>"


class ReaderHarness:
    """A fetcher with a clock that stands, and what an admin has set for every host."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.now = 1000.0
        self.access: SourceAccess | None = None

    async def access_to(self, _host: str) -> SourceAccess | None:
        return self.access

    async def read(
        self, gallery: GallerySettings, copy: GalleryCopy | None = None, *, patient: bool = True, within: float = 20.0
    ) -> FreshIndex:
        fetcher = IndexReader(self.access_to, LOCAL, timeout=within, now=lambda: self.now)
        return await fetcher.read(gallery, copy, patient=patient)

    def gallery(self, *paths: str) -> GallerySettings:
        first, *mirrors = (f"{self.site.url}{path}" for path in paths)
        return GallerySettings(name="main", url=first, mirrors=mirrors)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def harness(site: Site) -> ReaderHarness:
    return ReaderHarness(site)


def copied(request: GallerySettings, fresh: FreshIndex) -> GalleryCopy:
    return GalleryCopy(request, fresh.content or "", fresh.source, fresh.etag, fresh.cooling)


async def test_an_index_is_read_and_not_sent_again_while_it_is_the_same(harness: ReaderHarness, site: Site) -> None:
    site.pages["/index.yaml"] = Page(INDEX)
    gallery = harness.gallery("/index.yaml")
    first = await harness.read(gallery, None)
    assert (first.content, first.etag) == (INDEX.decode(), '"v1"')
    again = await harness.read(gallery, copied(gallery, first))
    assert (again.content, again.etag) == (None, '"v1"')
    site.pages["/index.yaml"] = Page(INDEX + b"- {name: new, uri: registry.invalid/a/b:1}\n", etag='"v2"')
    changed = await harness.read(gallery, copied(gallery, first))
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
async def test_mirror_is_used_and_the_failed_address_is_skipped_for_a_while(
    harness: ReaderHarness, site: Site, bad: Page
) -> None:
    site.pages.update({"/bad": bad, "/mirror": Page(INDEX)})
    gallery = harness.gallery("/bad", "/mirror")
    fresh = await harness.read(gallery, None)
    assert fresh.source.endswith("/mirror")
    assert list(fresh.cooling) == [gallery.url]
    asked = len(site.seen)
    await harness.read(gallery, copied(gallery, fresh))
    assert site.asked()[asked:] == ["/mirror"]
    harness.now += COOLDOWN_S + 1
    await harness.read(gallery, copied(gallery, fresh))
    assert "/bad" in site.asked()[asked + 1 :]


async def test_all_failed_addresses_are_tried_and_each_failure_is_reported(harness: ReaderHarness, site: Site) -> None:
    site.pages.update({"/a": Page(b"", status=503), "/b": Page(PAGE)})
    gallery = harness.gallery("/a", "/b")
    with pytest.raises(SourceFailed, match=r"/a: answered 503.*; .*/b: It is not a list") as failed:
        await harness.read(gallery, None)
    copy = replace(copied(gallery, FreshIndex("", "", INDEX.decode(), {})), cooling=failed.value.cooling)
    site.pages["/b"] = Page(INDEX)
    fresh = await harness.read(gallery, copy)
    assert (fresh.source, list(fresh.cooling)) == (f"{site.url}/b", [f"{site.url}/a"])


async def test_manual_refresh_ignores_the_cooldown(harness: ReaderHarness, site: Site) -> None:
    site.pages.update({"/a": Page(INDEX), "/b": Page(INDEX)})
    gallery = harness.gallery("/a", "/b")
    copy = GalleryCopy(gallery, "", "", "", {gallery.url: harness.now + 500})
    fresh = await harness.read(gallery, copy, patient=False)
    assert (fresh.source, fresh.cooling) == (gallery.url, {})


async def test_endless_response_times_out(harness: ReaderHarness, site: Site) -> None:
    site.pages["/slow"] = Page(INDEX, hangs=True)
    with pytest.raises(SourceFailed, match="no answer in time"):
        await harness.read(harness.gallery("/slow"), within=0.3)


async def test_endless_index_is_refused_at_the_size_limit(
    harness: ReaderHarness, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_reader, "LARGEST", 10)
    site.pages["/big"] = Page(INDEX)
    with pytest.raises(SourceFailed, match="larger than 10 bytes"):
        await harness.read(harness.gallery("/big"), None)


async def test_index_is_read_plain_or_as_gzip_only(harness: ReaderHarness, site: Site) -> None:
    site.pages["/gzip"] = Page(gzip.compress(INDEX), encoding="gzip")
    assert (await harness.read(harness.gallery("/gzip"), None)).content == INDEX.decode()
    assert site.seen[-1][1]["accept-encoding"] == "gzip"
    for encoding in ("zstd", "gzip, zstd", "br"):
        site.pages["/other"] = Page(b"x", encoding=encoding)
        with pytest.raises(SourceFailed, match="which was not asked for"):
            await harness.read(harness.gallery("/other"), None)


async def test_host_settings_are_used_and_never_shown(harness: ReaderHarness, site: Site) -> None:
    site.pages["/private"] = Page(b"", status=401)
    harness.access = SourceAccess(host="h", username="ada", password="s3cret")
    with pytest.raises(SourceFailed) as failed:
        await harness.read(harness.gallery("/private"), None)
    assert site.seen[-1][1]["authorization"].startswith("Basic ")
    assert "s3cret" not in str(failed.value)


async def test_a_file_is_a_gallery_too(tmp_path: Path, harness: ReaderHarness) -> None:
    (tmp_path / "my index.yaml").write_bytes(
        b"\xef\xbb\xbf- {name: mine, uri: mine.tar.gz, sha256: " + b"a" * 64 + b"}"
    )
    gallery = GallerySettings(name="main", url=(tmp_path / "my index.yaml").as_uri())
    fresh = await harness.read(gallery, None)
    assert (fresh.content or "").startswith("- {name: mine")
    with pytest.raises(SourceFailed, match="No such file"):
        await harness.read(GallerySettings(name="main", url="file:///nowhere/index.yaml"), None)


def test_addresses_are_resolved_or_refused() -> None:
    found = address("github:forge/backends/lists/index.yaml@master")
    assert found == "https://raw.githubusercontent.com/forge/backends/master/lists/index.yaml"
    assert not any(complaint(url) for url in ("https://a.invalid/i", "file:///i", "github:a/b/c@d"))
    for url in ("ftp://a.invalid", "https://", "https://me:secret@a.invalid/i", "http://[", "index.yaml"):
        assert complaint(url)
        assert "secret" not in complaint(url)


async def test_pipe_is_refused_as_a_gallery(tmp_path: Path, harness: ReaderHarness) -> None:
    """Nobody writes to it: opened as a file, it would hold a thread of the API without end."""
    os.mkfifo(tmp_path / "index.yaml")
    with pytest.raises(SourceFailed, match="not a regular file"):
        await harness.read(GallerySettings(name="main", url=(tmp_path / "index.yaml").as_uri()), None)


async def test_a_ref_leads_to_the_file_beside_it(harness: ReaderHarness, site: Site) -> None:
    site.pages["/list/index.ref"] = Page(b"index-1.yaml\n")
    site.pages["/list/index-1.yaml"] = Page(INDEX)
    gallery = harness.gallery("/list/index.ref")
    first = await harness.read(gallery)
    assert (first.content, first.source) == (INDEX.decode(), gallery.url)
    again = await harness.read(gallery, copied(gallery, first))
    assert again.content is None, "neither has changed"
    site.pages["/list/index.ref"] = Page(b"index-2.yaml\n")
    site.pages["/list/index-2.yaml"] = Page(INDEX.replace(b"tool", b"other"))
    moved = await harness.read(gallery, copied(gallery, first))
    assert "other" in (moved.content or ""), "another file, though its ETag is the same"


@pytest.mark.parametrize(
    "name", [b"", b"../secret.yaml", b"/etc/passwd", b"https://elsewhere.invalid/x", b"a\nb", b"more.ref", b"x" * 300]
)
async def test_a_ref_that_leads_elsewhere_is_not_followed(harness: ReaderHarness, site: Site, name: bytes) -> None:
    site.pages["/list/index.ref"] = Page(name)
    for path in ("/secret.yaml", "/etc/passwd", "/list/more.ref"):
        site.pages[path] = Page(INDEX)
    with pytest.raises(SourceFailed, match="does not name a file beside it"):
        await harness.read(harness.gallery("/list/index.ref"))


async def test_a_ref_on_the_disk_is_followed_too(tmp_path: Path, harness: ReaderHarness) -> None:
    (tmp_path / "index.ref").write_text("real.yaml")
    (tmp_path / "real.yaml").write_bytes(INDEX)
    gallery = GallerySettings(name="main", url=(tmp_path / "index.ref").as_uri())
    assert (await harness.read(gallery)).content == INDEX.decode()
