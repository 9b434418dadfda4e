"""Finding published signatures: beside an archive, and in the registry of an image."""

import hashlib
import json
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.domain.errors import RegistryDown
from nodesmith.gallery.cosign import SIGNATURE
from nodesmith.gallery.minisign import SecretKey
from nodesmith.gallery.oci import INDEX_TYPES, MANIFEST_TYPES
from nodesmith.gallery.signatures import PublishedSignatures
from tests.agent.registry import Published, publish
from tests.agent.web import Web, running
from tests.gallery.test_cosign import DIGEST, VECTORS, bundle, envelope, payload, public_text, signed
from tests.sources import LOCAL

KEY = ec.generate_private_key(ec.SECP256R1())
ARCHIVE = VECTORS / "artifact.bin"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"


@pytest.fixture
def web() -> Iterator[Web]:
    with running() as web:
        yield web


async def no_access(_host: str) -> SourceAccess | None:
    return None


async def signers(uri: str, sha256: str, *keys: str) -> set[str]:
    return await PublishedSignatures(no_access, LOCAL, timeout=20.0).signers([uri], sha256, keys or [public_text(KEY)])


def blob(web: Web, published: Published, content: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    web.serve(f"/v2/{published.name}/blobs/{digest}", content)
    return digest


def manifest(web: Web, published: Published, at: str, document: dict[str, object]) -> str:
    content = json.dumps({"schemaVersion": 2, **document}).encode()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    for name in filter(None, (at, f"manifests/{digest}")):
        web.serve(f"/v2/{published.name}/{name}", content)
    return digest


def sign_simply(web: Web, published: Published, digest: str) -> None:
    """As `cosign sign --key` does it."""
    content = payload(digest)
    layer = {
        "digest": blob(web, published, content),
        "size": len(content),
        "annotations": {SIGNATURE: signed(KEY, content)},
    }
    tag = f"manifests/sha256-{published.digest.removeprefix('sha256:')}.sig"
    manifest(web, published, tag, {"mediaType": MANIFEST_TYPES[0], "layers": [layer]})


def attach_bundle(web: Web, published: Published, content: bytes, at: str) -> None:
    """As `cosign sign --new-bundle-format` does it: `at` is the referrers route, or the tag that stands for it."""
    layer = {"digest": blob(web, published, content), "size": len(content)}
    referring = manifest(web, published, "", {"artifactType": BUNDLE, "layers": [layer]})
    listed = [{"digest": referring, "artifactType": BUNDLE}]
    manifest(web, published, at, {"mediaType": INDEX_TYPES[0], "manifests": listed})


async def test_an_image_is_signed_under_the_tag_of_cosign(web: Web) -> None:
    published = publish(web, [b"layer"])
    digest = published.digest.removeprefix("sha256:")
    assert await signers(published.reference, digest) == set()
    sign_simply(web, published, digest)
    found = await signers(published.reference, digest)
    assert len(found) == 1
    assert await signers(published.reference, digest, SecretKey.make().public_text()) == set()


async def test_the_signature_of_another_image_is_none(web: Web) -> None:
    published = publish(web, [b"layer"])
    sign_simply(web, published, DIGEST)
    assert await signers(published.reference, published.digest.removeprefix("sha256:")) == set()


@pytest.mark.parametrize("place", ["referrers/{digest}", "manifests/{tag}"])
async def test_an_image_is_signed_by_a_bundle_that_refers_to_it(web: Web, place: str) -> None:
    published = publish(web, [b"layer"])
    digest = published.digest.removeprefix("sha256:")
    at = place.format(digest=published.digest, tag=f"sha256-{digest}")
    attach_bundle(web, published, envelope(KEY, digest=digest), at)
    assert len(await signers(published.reference, digest)) == 1


async def test_an_archive_is_signed_by_minisign_beside_it(web: Web) -> None:
    keys = [SecretKey.make(), SecretKey.make()]
    web.serve("/a.tar.gz.minisig", "".join(key.sign(ARCHIVE, sha256=DIGEST) for key in keys).encode())
    texts = [key.public_text() for key in keys]
    assert await signers(f"{web.url}/a.tar.gz?secret=1", DIGEST, *texts) == {key.id for key in keys}
    assert await signers(f"{web.url}/a.tar.gz", "0" * 64, *texts) == set()
    assert "secret" not in web.seen[0].path


async def test_an_archive_is_signed_by_a_bundle_beside_it(web: Web) -> None:
    content = bundle(messageSignature={"signature": (VECTORS / "openssl.sig").read_text()})
    web.serve("/a.tar.gz.sigstore.json", content)
    assert len(await signers(f"{web.url}/a.tar.gz", DIGEST, (VECTORS / "openssl.pub").read_text())) == 1


async def test_a_place_that_does_not_answer_is_down_and_not_unsigned(web: Web) -> None:
    published = publish(web, [b"layer"], status=500)
    web.serve(f"/v2/{published.name}/manifests/sha256-{DIGEST}.sig", b"", status=500)
    with pytest.raises(RegistryDown, match="cannot be read"):
        await signers(published.reference, DIGEST)
    with pytest.raises(RegistryDown, match="cannot be read"):
        await signers("http://127.0.0.1:9/a.tar.gz", DIGEST)


async def test_invalid_signature_data_counts_as_unsigned(web: Web) -> None:
    web.serve("/a.tar.gz.minisig", b"\xff\x00")
    web.serve("/a.tar.gz.sigstore.json", b"[]")
    assert await signers(f"{web.url}/a.tar.gz", DIGEST) == set()
