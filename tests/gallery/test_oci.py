"""Real-world references, indexes and manifests."""

import pytest

from nodesmith.gallery import oci
from nodesmith.gallery.oci import NoSuchPlatform, NotOci, Platform, Reference

DIGEST = f"sha256:{'a' * 64}"
OTHER = f"sha256:{'b' * 64}"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("oci://quay.io/org/img:tag", Reference("quay.io", "org/img", "tag")),
        ("quay.io/go-skynet/backends:latest-cpu", Reference("quay.io", "go-skynet/backends", "latest-cpu")),
        ("localai/localai-backends:x", Reference("docker.io", "localai/localai-backends", "x")),
        ("docker.io/library/alpine", Reference("docker.io", "library/alpine", "latest")),
        ("127.0.0.1:5000/a/b/c", Reference("127.0.0.1:5000", "a/b/c", "latest")),
        ("localhost/a", Reference("localhost", "a", "latest")),
        (f"ghcr.io/o/i:t@{DIGEST}", Reference("ghcr.io", "o/i", "t", DIGEST)),
        (f"ghcr.io/o/i@{DIGEST}", Reference("ghcr.io", "o/i", "latest", DIGEST)),
    ],
)  # fmt: skip
def test_references_are_read(uri, expected):
    assert oci.read_reference(uri) == expected
    assert oci.is_reference(uri)


@pytest.mark.parametrize(
    "uri",
    ["", "echo", "https://quay.io/a/b", "/artifacts/a.tar.gz", "file:///a/b", "quay.io/../etc", "quay.io/A/b",
     "oci://", "//evil.example/a", "quay.io/a b", "quay.io/a@sha256:12", "javascript:x", f"a/{'b' * 2000}"],
)  # fmt: skip
def test_what_is_no_reference_is_not_taken_for_one(uri):
    assert not oci.is_reference(uri)


def test_only_this_machine_is_spoken_to_without_tls():
    assert oci.read_reference("127.0.0.1:5000/a").base_url == "http://127.0.0.1:5000/v2/a"
    assert oci.read_reference("localhost:5000/a").base_url == "http://localhost:5000/v2/a"
    assert oci.read_reference("quay.io/a/b").base_url == "https://quay.io/v2/a/b"
    assert oci.read_reference("a/b").base_url == "https://registry-1.docker.io/v2/a/b"


def index(**builds: str) -> dict[str, object]:
    platforms = {name: dict(zip(("os", "architecture", "variant"), name.split("_"), strict=False)) for name in builds}
    return {"manifests": [{"digest": digest, "platform": platforms[name]} for name, digest in builds.items()]}


def test_the_build_of_a_platform_is_chosen_and_an_exact_variant_first():
    builds = index(linux_amd64=DIGEST, linux_arm_v6=OTHER, linux_arm_v7=DIGEST)
    assert oci.choose(builds, Platform("linux", "amd64")) == DIGEST
    assert oci.choose(builds, Platform("linux", "arm", "v7")) == DIGEST
    assert oci.choose(builds, Platform("linux", "arm", "v6")) == OTHER
    with pytest.raises(NoSuchPlatform, match="linux/amd64"):
        oci.choose(builds, Platform("linux", "riscv64"))


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"[]", b"{}", b'{"layers": []}', b'{"layers": [{"digest": "../../x", "size": 1}]}',
     b'{"layers": [{"digest": "sha256:' + b"a" * 64 + b'", "size": -1}]}',
     b'{"layers": ["x"]}', b'{"layers": 3}', b"[" * 100_000, b"\xff", b"3"],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(content):
    with pytest.raises(NotOci):
        oci.layers(oci.read_document(content))


@pytest.mark.parametrize(
    ("ours", "there", "taken"),
    [
        ("", ["v3", "", "v2"], ""),
        ("", ["v3", "v2"], "v2"),
        ("v7", ["v5", "v8", "v6"], "v6"),
        ("v7", ["v6", "v7", ""], "v7"),
        ("v7", ["v8"], None),
    ],
)
def test_of_several_variants_the_nearest_that_runs_is_taken(ours: str, there: list[str], taken: str | None) -> None:
    manifests = [
        {"digest": f"sha256:{number:064x}", "platform": {"os": "linux", "architecture": "arm", "variant": variant}}
        for number, variant in enumerate(there)
    ]
    platform = Platform("linux", "arm", ours)
    if taken is None:
        with pytest.raises(NoSuchPlatform):
            oci.choose({"manifests": manifests}, platform)
    else:
        assert oci.choose({"manifests": manifests}, platform) == f"sha256:{there.index(taken):064x}"


@pytest.mark.parametrize("manifests", [["x"], [{"platform": "linux"}], [3]])
def test_what_is_no_index_is_refused(manifests: list[object]) -> None:
    with pytest.raises(NotOci):
        oci.choose({"manifests": manifests}, Platform("linux", "amd64"))
