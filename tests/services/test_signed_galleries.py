"""Trust of galleries: refused indexes, expiry, and the signatures that an install needs."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nodesmith.contracts.temporal.operations import Intent
from nodesmith.domain.errors import (
    GalleryUnreadable,
    IndexExpired,
    InvalidRequest,
    NotSigned,
    RegistryDown,
    ServiceUnavailable,
    UnknownGallery,
)
from nodesmith.domain.gallery import TrustSettings
from nodesmith.domain.gallery_trust import GalleryPolicy, GalleryTrust
from nodesmith.domain.kinds import Kind
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.index import read_index
from nodesmith.gallery.minisign import SecretKey
from nodesmith.gallery.signatures import PublishedSignatures
from nodesmith.gallery.tags import RegistryTags
from nodesmith.services.catalogue.galleries import Galleries, check_trust
from nodesmith.services.operations.artifact_check import ArtifactCheck
from nodesmith.services.operations.intents import Intents, UriRules
from nodesmith.services.requested_work import RequestedBackend
from nodesmith.store.database import Database
from tests.agent.registry import publish
from tests.agent.web import Web, running
from tests.gallery.test_cosign import public_text
from tests.gallery.test_signatures import KEY, sign_simply
from tests.gallery.test_signed_index import DAY, Gallery, entry
from tests.services.conftest import no_access, now
from tests.services.test_galleries import replica
from tests.sources import LOCAL
from tests.store.clock import SetClock

SIGNED = GalleryPolicy.SIGNED
MINE = SecretKey.make()
RENUMBERED = replace(MINE, number=bytes(8))
"""the same key under another key id"""


@pytest.fixture
def web() -> Iterator[Web]:
    with running() as web:
        yield web


@pytest.fixture
def published(tmp_path: Path) -> Gallery:
    return Gallery(tmp_path)


@pytest.fixture
def clock() -> SetClock:
    clock = SetClock()
    clock.now = datetime.now(UTC)
    return clock


@pytest.fixture
async def galleries(database: Database, clock: SetClock, published: Gallery) -> AsyncIterator[Galleries]:
    galleries = replica(database, clock)
    await galleries.add(published.request(), by="ada")
    yield galleries
    await galleries.remove("main")


def names(galleries: Galleries) -> list[str]:
    return [each.artifact.name for each in galleries.catalogue.listed()]


async def test_a_refused_index_leaves_the_last_good_one_in_use_and_says_why(
    galleries: Galleries, published: Gallery
) -> None:
    await galleries.check_signed()
    published.publish("second")
    published.index.write_text(entry("evil!!"))
    view = (await galleries.refresh("main"))[0]
    assert "not the one that its metadata lists" in view.error
    assert names(galleries) == ["first"]
    with pytest.raises(ServiceUnavailable, match="main"):
        await galleries.check_signed()
    published.publish("third")
    view = (await galleries.refresh("main"))[0]
    assert (view.error, view.index_version, names(galleries)) == ("", 3, ["third"])
    await galleries.check_signed()


async def test_a_rollback_is_refused_by_a_replica_that_has_just_started(
    galleries: Galleries, published: Gallery, database: Database, clock: SetClock, tmp_path: Path
) -> None:
    published.keep(tmp_path / "old")
    published.publish("second")
    await galleries.refresh("main")
    for name in ("index.yaml", "metadata/timestamp.json"):
        (tmp_path / name).write_text((tmp_path / "old" / name).read_text())
    other = replica(database, clock)
    view = (await other.refresh("main"))[0]
    assert "must be >= 2" in view.error
    assert (view.index_version, names(other)) == (2, ["second"])


async def test_expired_index_refuses_installs(galleries: Galleries, clock: SetClock) -> None:
    check = ArtifactCheck(PublishedSignatures(no_access, LOCAL), clock)
    wanted = Intent(backend="first", family="first", uri="https://x/first", sha256="a" * 64, gallery="main")
    said = await check.verify(wanted, galleries.catalogue.trust("main"))
    assert said == "sha256 from the signed index of the gallery main, version 1"
    clock.forward(seconds=DAY.total_seconds() + 1)
    with pytest.raises(IndexExpired, match="main"):
        await check.verify(wanted, galleries.catalogue.trust("main"))
    with pytest.raises(ServiceUnavailable):
        await galleries.check_signed()


async def test_trust_that_a_gallery_cannot_meet_changes_nothing(galleries: Galleries, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    with pytest.raises(GalleryUnreadable, match="keeps its previous trust settings"):
        await galleries.trust("main", TrustSettings(policy=SIGNED, root=Gallery(folder).root))
    view = await galleries.find("main")
    assert (view.policy, view.signed_index, view.index_version) == ("signed", True, 1)
    with pytest.raises(UnknownGallery):
        await galleries.trust("other", TrustSettings())


async def test_trust_settings_can_be_set_and_removed(galleries: Galleries) -> None:
    key = SecretKey.make()
    view = await galleries.trust("main", TrustSettings(policy=SIGNED, keys=[key.public_text()]))
    assert (view.key_ids, view.signed_index, view.index_version) == ([key.id], False, 0)
    view = await galleries.trust("main", TrustSettings())
    assert (view.policy, view.key_ids) == ("digest", [])


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (TrustSettings(policy=SIGNED), "keys"),
        (TrustSettings(policy=SIGNED, keys=["no key"]), "keys"),
        (TrustSettings(policy=SIGNED, root="no root"), "root"),
        (TrustSettings(policy=SIGNED, keys=[public_text(KEY)] * 2, threshold=2), "threshold"),
        (TrustSettings(policy=SIGNED, keys=[MINE.public_text(), RENUMBERED.public_text()], threshold=2), "threshold"),
        (TrustSettings(policy=GalleryPolicy.DIGEST, keys=[public_text(KEY)]), "policy"),
    ],
)
def test_contradictory_trust_settings_are_refused(wanted: TrustSettings, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_trust(wanted)
    assert refused.value.facts["field"] == field


# installing ---------------------------------------------------------------------------------------------------


def intents(index: str, trust: GalleryTrust) -> Intents:
    catalogue = Catalogue(read_index(index, "main", trust=trust).entries, trust={"main": trust})
    check = ArtifactCheck(PublishedSignatures(no_access, LOCAL, timeout=20.0), now)
    return Intents(catalogue, UriRules(frozenset({"oci"}), sources=LOCAL), RegistryTags(no_access, LOCAL), check)


async def admitted(intents: Intents) -> Intent:
    wanted = intents.wanted(Kind.INSTALL, RequestedBackend(backend="engine"))
    return (await intents.pinned({"": wanted}))[""]


async def test_an_image_without_a_signature_of_a_trusted_key_is_not_installed(web: Web) -> None:
    image = publish(web, [b"layer"])
    index = f"- {{name: engine, uri: '{image.reference}'}}\n"
    trust = GalleryTrust(SIGNED, (public_text(KEY),))
    with pytest.raises(NotSigned, match="the gallery main trusts: none was found"):
        await admitted(intents(index, trust))
    sign_simply(web, image, image.digest.removeprefix("sha256:"))
    wanted = await admitted(intents(index, trust))
    assert wanted.sha256 == image.digest.removeprefix("sha256:")
    assert wanted.verified.startswith("sha256 from the gallery main; signed by ")
    two = replace(trust, keys=(*trust.keys, SecretKey.make().public_text()), threshold=2)
    with pytest.raises(NotSigned, match="1 trusted keys, 2 are needed"):
        await admitted(intents(index, two))


async def test_a_tag_that_moved_to_an_unsigned_image_is_not_installed(web: Web) -> None:
    """Arbitrary software: an attacker who controls the registry, but no key, moves the tag."""
    image = publish(web, [b"layer"])
    sign_simply(web, image, image.digest.removeprefix("sha256:"))
    evil = publish(web, [b"evil"])
    index, trust = f"- {{name: engine, uri: '{evil.reference}'}}\n", GalleryTrust(SIGNED, (public_text(KEY),))
    with pytest.raises(NotSigned):
        await admitted(intents(index, trust))


async def test_registry_error_instead_of_a_signature_refuses_the_install(web: Web) -> None:
    """Drop: an error in place of the signature is reported, and nothing is started."""
    image = publish(web, [b"layer"])
    web.serve(f"/v2/{image.name}/manifests/sha256-{image.digest.removeprefix('sha256:')}.sig", b"", status=500)
    index, trust = f"- {{name: engine, uri: '{image.reference}'}}\n", GalleryTrust(SIGNED, (public_text(KEY),))
    with pytest.raises(RegistryDown):
        await admitted(intents(index, trust))


@pytest.mark.parametrize(
    ("policy", "sha256", "verified"),
    [
        (GalleryPolicy.DIGEST, "a" * 64, "sha256 from the gallery main"),
        (GalleryPolicy.NONE, "", "not verified: the policy of the gallery main is `none`"),
    ],
)
async def test_an_operation_says_how_its_artifact_was_verified(
    policy: GalleryPolicy, sha256: str, verified: str
) -> None:
    index = f"- {{name: engine, uri: 'https://files.invalid/e.tar.gz', sha256: '{sha256}'}}\n"
    assert (await admitted(intents(index, GalleryTrust(policy)))).verified == verified


def test_a_signed_index_that_names_a_tag_lists_it_as_unusable() -> None:
    index = (
        f"- {{name: a, uri: registry.invalid/a/a:1}}\n- {{name: b, uri: 'registry.invalid/a/b@sha256:{'a' * 64}'}}\n"
    )
    read = read_index(index, "main", trust=GalleryTrust(SIGNED, has_root=True))
    assert [each.artifact.name for each in read.entries] == ["b"]
    assert "named by tag" in read.unusable[0].reason
