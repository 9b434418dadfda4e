"""A signed index under attack: one test for each attack of Uptane's list that concerns clients."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.domain.gallery import FreshIndex, GalleryCopy, GallerySettings
from nodesmith.domain.gallery_trust import GalleryPolicy
from nodesmith.gallery import index_reader
from nodesmith.gallery.addresses import SourceFailed
from nodesmith.gallery.index_reader import IndexReader
from nodesmith.gallery.index_signing import CannotSign, Publisher
from nodesmith.gallery.minisign import SecretKey
from nodesmith.gallery.signed_index import IndexRefused, check_root
from tests.gallery.site import Page, Site, serving
from tests.sources import LOCAL

DAY = timedelta(days=1)
SHA = "a" * 64


def entry(name: str) -> str:
    return f"- {{name: {name}, uri: {name}.tar.gz, sha256: {SHA}}}\n"


async def no_access(_host: str) -> SourceAccess | None:
    return None


class Gallery:
    """A publisher with keys, and a reader that remembers what it has verified."""

    def __init__(self, folder: Path, *, keys: int = 1, threshold: int = 1) -> None:
        self.index = folder / "index.yaml"
        self.keys = [SecretKey.make() for _ in range(keys)]
        self.threshold = threshold
        self.copy: GalleryCopy | None = None
        self.publish("first")
        self.root = (folder / "metadata" / "1.root.json").read_text()
        self.url = self.index.as_uri()

    def publish(self, name: str, *, lifetime: timedelta = DAY, keys: list[SecretKey] | None = None) -> None:
        self.index.write_text(entry(name))
        Publisher(self.index, lifetime=lifetime).sign(keys or self.keys, threshold=self.threshold)

    @property
    def metadata(self) -> Path:
        return self.index.parent / "metadata"

    def keep(self, to: Path) -> None:
        """As an attacker who records what was published."""
        shutil.copytree(self.index.parent, to)

    def request(self) -> GallerySettings:
        return GallerySettings(
            name="main", url=self.url, policy=GalleryPolicy.SIGNED, root=self.root, keys=[], threshold=1
        )

    async def read(self, *, limit: float = 30.0) -> FreshIndex:
        """Read it and remember, as the database does."""
        request = self.request()
        fresh = await IndexReader(no_access, LOCAL, timeout=limit).read(request, self.copy, patient=False)
        assert fresh.proof is not None
        content = fresh.content if fresh.content is not None else (self.copy.content if self.copy else "")
        self.copy = GalleryCopy(
            request, content, fresh.source, "", {}, fresh.proof.metadata, fresh.proof.version, fresh.proof.expires_at
        )
        return fresh


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    folder = tmp_path / "published"
    folder.mkdir()
    return Gallery(folder)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


async def refused(gallery: Gallery, match: str) -> None:
    with pytest.raises(SourceFailed, match=match):
        await gallery.read()


async def test_a_signed_index_is_read_and_read_again_only_when_it_changed(gallery: Gallery) -> None:
    first = await gallery.read()
    assert first.content == entry("first")
    assert first.proof is not None
    assert first.proof.version == 1
    assert (await gallery.read()).content is None
    gallery.publish("second")
    second = await gallery.read()
    assert (second.content, second.proof and second.proof.version) == (entry("second"), 2)


async def test_arbitrary_software_another_index_is_refused(gallery: Gallery) -> None:
    gallery.index.write_text(entry("evil!"))
    await refused(gallery, "not the one that its metadata lists|larger than")


async def test_arbitrary_software_metadata_of_another_key_is_refused(gallery: Gallery, tmp_path: Path) -> None:
    await gallery.read()
    folder = tmp_path / "evil"
    folder.mkdir()
    evil = Gallery(folder)
    evil.publish("second")
    for name in ("timestamp.json", "2.snapshot.json", "2.targets.json"):
        shutil.copy(evil.metadata / name, gallery.metadata / name)
    shutil.copy(evil.index, gallery.index)
    await refused(gallery, "signed by 0/1")


async def test_rollback_to_an_older_index_is_refused(gallery: Gallery, tmp_path: Path) -> None:
    gallery.keep(tmp_path / "old")
    gallery.publish("second")
    await gallery.read()
    gallery.url = (tmp_path / "old" / "index.yaml").as_uri()
    await refused(gallery, "timestamp version 1 must be >= 2")


async def test_freeze_an_index_that_is_not_signed_again_expires(gallery: Gallery) -> None:
    gallery.publish("second", lifetime=timedelta(seconds=-1))
    await refused(gallery, "expired")


async def test_mix_and_match_of_two_versions_is_refused(gallery: Gallery, tmp_path: Path) -> None:
    gallery.keep(tmp_path / "old")
    gallery.publish("second")
    shutil.copy(tmp_path / "old" / "metadata" / "1.targets.json", gallery.metadata / "2.targets.json")
    await refused(gallery, "refused")


async def test_partial_bundle_metadata_without_its_index_is_refused(gallery: Gallery) -> None:
    gallery.index.unlink()
    await refused(gallery, "No such file")


async def test_partial_bundle_an_index_without_its_metadata_is_refused(gallery: Gallery) -> None:
    shutil.rmtree(gallery.metadata)
    await refused(gallery, "does not exist")


async def test_endless_data_is_not_read_beyond_what_was_signed(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gallery.index.open("a") as index:
        index.write("#" * 100_000)
    await refused(gallery, f"larger than {len(entry('first'))} bytes")
    (gallery.metadata / "timestamp.json").write_text(" " * 20_000)
    await refused(gallery, "16384")
    monkeypatch.setattr(index_reader, "METADATA_LIMIT", 1000)
    await refused(gallery, "larger than 1000 bytes")


async def test_slow_retrieval_ends_with_the_time_for_one_reading(gallery: Gallery, site: Site) -> None:
    site.pages["/index.yaml"] = Page(b"", hangs=True)
    site.pages["/metadata/timestamp.json"] = Page((gallery.metadata / "timestamp.json").read_bytes(), hangs=True)
    gallery.url = f"{site.url}/index.yaml"
    with pytest.raises(SourceFailed, match="in time"):
        await gallery.read(limit=0.5)
    site.over.set()


async def test_fewer_signatures_than_the_threshold_are_refused(tmp_path: Path) -> None:
    gallery = Gallery(tmp_path, keys=3, threshold=2)
    await gallery.read()
    with pytest.raises(CannotSign, match="not enough"):
        gallery.publish("second", keys=gallery.keys[:1])
    gallery.publish("second", keys=gallery.keys[1:])
    await gallery.read()
    path = gallery.metadata / "timestamp.json"
    document = json.loads(path.read_text())
    document["signatures"] = document["signatures"][:1] * 2  # the same key twice is one key
    path.write_text(json.dumps(document))
    gallery.copy = None
    with pytest.raises(SourceFailed):
        await gallery.read()


async def test_keys_are_replaced_by_a_root_that_the_old_keys_signed(gallery: Gallery, tmp_path: Path) -> None:
    await gallery.read()
    gallery.keep(tmp_path / "old")
    old, new = gallery.keys, [SecretKey.make()]
    Publisher(gallery.index, lifetime=DAY).rotate(old, new)
    fresh = await gallery.read()
    assert fresh.proof is not None
    assert (fresh.proof.root_version, fresh.proof.version) == (2, 2)
    gallery.publish("third", keys=new)
    assert (await gallery.read()).content == entry("third")
    with pytest.raises(CannotSign):
        gallery.publish("stolen", keys=old)


async def test_a_root_that_the_old_keys_did_not_sign_is_refused(gallery: Gallery, tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    evil = Gallery(folder)
    Publisher(evil.index, lifetime=DAY).rotate(evil.keys, [SecretKey.make()])
    shutil.copy(evil.metadata / "2.root.json", gallery.metadata / "2.root.json")
    await refused(gallery, "root was signed by 0/1")


async def test_mirror_with_a_false_index_is_skipped(gallery: Gallery, tmp_path: Path) -> None:
    gallery.keep(tmp_path / "lying")
    (tmp_path / "lying" / "index.yaml").write_text(entry("evil"))
    honest = gallery.url
    gallery.url = (tmp_path / "lying" / "index.yaml").as_uri()
    request = replace(gallery.request(), mirrors=[honest])
    fresh = await IndexReader(no_access, LOCAL).read(request, None, patient=False)
    assert (fresh.source, fresh.content) == (honest, entry("first"))


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[" * 10_000, '{"signed": {"_type": "root"}, "signatures": []}'])
def test_what_is_no_root_is_refused(text: str) -> None:
    with pytest.raises(IndexRefused):
        check_root(text)


@pytest.mark.parametrize("content", ["", "[]", "null", "[" * 5000, '{"signed": 1, "signatures": {}}', "\x00"])
async def test_what_is_no_metadata_is_refused(gallery: Gallery, content: str) -> None:
    (gallery.metadata / "timestamp.json").write_text(content)
    await refused(gallery, "refused")


def test_signing_leaves_no_unfinished_file(gallery: Gallery) -> None:
    assert not list(gallery.metadata.glob(".*"))
    targets = json.loads((gallery.metadata / "1.targets.json").read_text())["signed"]["targets"]
    digest = hashlib.sha256(gallery.index.read_bytes()).hexdigest()
    assert targets == {"index.yaml": {"length": gallery.index.stat().st_size, "hashes": {"sha256": digest}}}
