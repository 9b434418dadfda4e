"""Parsing indexes: real-world ones, and invalid ones."""

import pytest

from nodesmith.domain.gallery_trust import GalleryPolicy, GalleryTrust
from nodesmith.gallery import yaml_documents
from nodesmith.gallery.entries import Index
from nodesmith.gallery.index import read_index
from nodesmith.gallery.yaml_documents import NotAnIndex
from tests.gallery import wild

SHA = "a" * 64
SOUND = "- name: sound\n  uri: registry.invalid/forge/sound:1\n"


def read(text: str, policy: GalleryPolicy = GalleryPolicy.DIGEST) -> Index:
    return read_index(text, "main", trust=GalleryTrust(policy))


def reasons(index: Index) -> dict[str, str]:
    return {entry.name: entry.reason for entry in index.unusable}


def names(index: Index) -> list[str]:
    return [entry.artifact.name for entry in index.entries]


def test_thousand_real_world_entries_are_all_read() -> None:
    index = read(wild.index(63))
    assert len(index.entries) == 63 * 18 > 1000
    assert not index.unusable
    assert sum(entry.is_meta for entry in index.entries) == 63 * 2


def test_a_build_inherits_from_its_meta_and_only_its_uri_tells_them_apart() -> None:
    meta, _, *builds = read(wild.backend("engine")).entries
    build = next(each for each in builds if each.artifact.name == "rocm-engine")
    assert meta.is_meta
    assert not build.is_meta
    assert build.capabilities == meta.capabilities
    assert (build.license, build.tags, build.urls) == (meta.license, meta.tags, meta.urls)
    assert build.artifact.uri == "registry.invalid/forge/backends:latest-gpu-rocm-engine"
    assert build.artifact.mirrors == ("mirror.invalid/forge/backends:latest-gpu-rocm-engine",)


def test_builds_and_variants_of_one_alias_are_one_family() -> None:
    assert {entry.artifact.family for entry in read(wild.backend("Engine")).entries} == {"engine"}


def test_a_build_without_an_alias_is_of_the_family_of_its_meta() -> None:
    index = read(
        "- name: Whisper\n  capabilities: {default: cpu-whisper}\n- name: cpu-whisper\n  uri: r.invalid/a/w:1\n"
    )
    assert [(entry.artifact.family, entry.artifact.meta) for entry in index.entries] == [
        ("whisper", ""),
        ("whisper", "Whisper"),
    ]


def test_what_we_add_to_the_format_is_read() -> None:
    text = f"""- name: mine
  version: 1.10
  uri: https://files.invalid/mine.tar.gz
  sha256: sha256:{SHA.upper()}
  size: 1234
  platforms: [linux/amd64]
  notes: Faster.
  tags:
  urls: https://files.invalid
"""
    entry = read(text).entries[0]
    assert (entry.artifact.version, entry.artifact.sha256, entry.artifact.size) == ("1.10", SHA, 1234)
    assert (entry.artifact.platforms, entry.notes, entry.tags) == (("linux/amd64",), "Faster.", frozenset())
    assert entry.urls == ("https://files.invalid",)


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("mine-1.tar.gz", "https://files.invalid/galleries/mine-1.tar.gz"),
        ("./mine-1.tar.gz", "https://files.invalid/galleries/mine-1.tar.gz"),
        ("/mine-1.tar.gz", "https://files.invalid/mine-1.tar.gz"),
        ("registry.invalid/forge/mine:1", "registry.invalid/forge/mine:1"),
        ("oci://registry.invalid/forge/mine:1", "oci://registry.invalid/forge/mine:1"),
    ],
)
def test_a_file_beside_the_index_is_found_by_its_name(uri: str, found: str) -> None:
    text = f"- name: mine\n  uri: {uri}\n  sha256: {SHA}\n"
    index = read_index(text, gallery="main", base="https://files.invalid/galleries/index.yaml")
    assert index.entries[0].artifact.uri == found


BAD = {
    "nothing to install": "- name: bad\n  tags: [a]\n",
    "no name": "- uri: registry.invalid/forge/bad:1\n",
    "empty name": "- name: ''\n  uri: registry.invalid/forge/bad:1\n",
    "a name that is a list": "- name: [bad]\n  uri: registry.invalid/forge/bad:1\n",
    "a word": "- bad\n",
    "nothing": "-\n",
    "a digest that is none": "- name: bad\n  uri: https://files.invalid/bad.tar.gz\n  sha256: abc\n",
    "no digest": "- name: bad\n  uri: https://files.invalid/bad.tar.gz\n",
    "a password": f"- name: bad\n  uri: https://me:secret@files.invalid/bad.tar.gz\n  sha256: {SHA}\n",
    "a scheme of its own": "- name: bad\n  uri: gopher://files.invalid/bad\n",
    "a name twice": "- name: SOUND\n  uri: registry.invalid/forge/other:1\n",
    "a meta of itself": "- name: bad\n  capabilities: {default: bad}\n",
    "contains itself": "- &bad\n  name: bad\n  uri: registry.invalid/forge/bad:1\n  tags: *bad\n",
    "merges itself": "- &bad\n  name: bad\n  <<: *bad\n",
    "a tag that runs code": "- !!python/object/apply:os.system ['true']\n",
    "an unknown anchor": "- !!merge <<: *nobody\n  name: bad\n",
    "a quote without an end": '- name: bad\n  description: "and so on\n',
    "a list without an end": "- name: bad\n  tags: [a, b\n",
    "a tab": "- name: bad\n\turi: x\n",
    "two values": "- name: bad: worse: worst\n",
    "a uri that is a list": "- name: bad\n  uri: [a]\n",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bad_entry_is_reported_and_the_rest_works(bad: str) -> None:
    after = SOUND.replace("sound", "after")
    index = read(f"{SOUND}{bad}{after}")
    assert names(index) == ["sound", "after"]
    assert len(index.unusable) == 1
    assert index.unusable[0].reason.endswith(".")


def test_reasons_are_sentences_for_people() -> None:
    index = read(SOUND + BAD["nothing to install"] + BAD["a name twice"] + BAD["a quote without an end"])
    reported = [(entry.name, entry.line, entry.reason) for entry in index.unusable]
    assert reported == [
        ("bad", 3, "It has neither a uri nor capabilities, so there is nothing to install."),
        ("SOUND", 5, "The name is taken by the entry in line 1."),
        ("bad", 7, "Found unexpected end of stream (column 1)."),
    ]
    assert "secret" not in read(SOUND + BAD["a password"]).unusable[0].reason


def test_cyclic_metas_are_unusable() -> None:
    circle = "".join(f"- name: meta-{n}\n  capabilities: {{default: meta-{(n + 1) % 3}}}\n" for n in range(3))
    index = read(SOUND + circle)
    assert names(index) == ["sound"]
    assert set(reasons(index)) == {"meta-0", "meta-1", "meta-2"}


def test_cyclic_aliases_are_unusable() -> None:
    pair = "".join(f"- name: {a}\n  alias: {b}\n  uri: registry.invalid/a/{a}:1\n" for a, b in ("xy", "yx"))
    assert reasons(read(SOUND + pair)).keys() == {"x", "y"}


def test_entry_that_uses_an_anchor_of_a_broken_entry_is_unusable() -> None:
    broken = "- &base\n  name: base\n  tags: [a\n"
    index = read(
        f"{SOUND}{broken}- <<: *base\n  name: above\n  uri: registry.invalid/a/b:1\n{SOUND.replace('sound', 'z')}"
    )
    assert names(index) == ["sound", "z"]
    assert reasons(index)["above"] == "It uses the anchor base, which does not exist."


def test_an_archive_without_a_digest_is_for_galleries_with_the_policy_none() -> None:
    assert names(read(BAD["no digest"], GalleryPolicy.NONE)) == ["bad"]


NO_INDEX = {
    "a page": "<!DOCTYPE html><html><body>503 Service Unavailable</body></html>",
    "an object": "error: not found\n",
    "a sentence": "Not found",
    "nothing": "",
    "an empty list": "[]",
    "bytes": "\x00\x01",
    "only bad entries": BAD["nothing to install"],
    "no YAML at all": "- [\n",
    "two documents": f"{SOUND}---\n{SOUND}",
}


@pytest.mark.parametrize("text", NO_INDEX.values(), ids=NO_INDEX.keys())
def test_document_without_backends_is_refused(text: str) -> None:
    with pytest.raises(NotAnIndex):
        read(text)


def test_billion_laughs_index_is_refused() -> None:
    keys = ", ".join(f"k{n}: {n}" for n in range(10))
    levels = [f"- &l0 {{{keys}}}\n"]
    levels += [f"- &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 10)}]}}\n" for n in range(1, 10)]
    with pytest.raises(NotAnIndex, match="too many parts"):
        read(SOUND + "".join(levels))


def test_an_index_of_aliases_is_refused_before_its_entries_are_made() -> None:
    """200,000 aliases of one entry fit into 1 MB, and cost a minute when each was looked at."""
    with pytest.raises(NotAnIndex, match="more than 20000 backends"):
        read("- &a {name: a, uri: registry.invalid/a/b:1}\n" + "- *a\n" * 200_000)
    tags = ", ".join(f"t{n}" for n in range(100))
    shared = f"- &a {{name: a, uri: registry.invalid/a/b:1, tags: [{tags}]}}\n"
    with pytest.raises(NotAnIndex, match="too many parts"):
        read(shared + "- *a\n" * 10_000)


def test_what_many_entries_share_is_bounded() -> None:
    """A list behind an anchor costs its length once more in each entry."""
    shared = f"- &m\n  name: m\n  uri: quay.io/x/m:1\n  tags: [{', '.join(f't{n}' for n in range(1000))}]\n"
    many = "".join(f"- <<: *m\n  name: n{n}\n" for n in range(50))
    index = read(SOUND + shared + many)
    assert {bad.reason for bad in index.unusable} == {"tags: Value error, the list has more than 256 items."}
    assert len(index.unusable) == 51


def test_cycles_are_found_in_linear_time() -> None:
    """Thousands of metas in a row, or in one circle, are looked at once each."""
    row = "".join(f"- {{name: m{n}, capabilities: {{default: m{n + 1}}}}}\n" for n in range(3_000))
    assert read(f"{SOUND}{row}").unusable == []
    circle = read(f"{SOUND}{row}- {{name: m3000, capabilities: {{default: m0}}}}\n")
    assert len(circle.unusable) == 3_001


@pytest.mark.parametrize(
    "uri", ["http://", "https:///x.tar.gz", "oci://", "javascript:alert(1)", "' '", "oci://h/UP:1"]
)
def test_a_uri_that_leads_nowhere_is_unusable(uri: str) -> None:
    index = read(f"{SOUND}- name: odd\n  uri: {uri}\n  sha256: {'a' * 64}\n")
    assert [(bad.name, bad.reason.startswith("Nothing can be fetched")) for bad in index.unusable] == [("odd", True)]


def test_depth_and_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAnIndex, match="nested"):
        read(f"{SOUND}- {'[' * 200}{']' * 200}\n")
    with pytest.raises(NotAnIndex):
        read(f"{SOUND}- {'[' * 20_000}{']' * 20_000}\n")
    for abyss in ("[" * 200_000, "{a: " * 200_000, "- " * 200_000, "? " * 200_000):
        with pytest.raises(NotAnIndex):
            read(f"{SOUND}- {abyss}\n")
    monkeypatch.setattr(yaml_documents, "LARGEST", 20)
    with pytest.raises(NotAnIndex, match="larger"):
        read(SOUND)


def test_shared_lists_are_not_unfolded() -> None:
    levels = ["- &l0 [a, a]\n"] + [f"- &l{n} [*l{n - 1}, *l{n - 1}]\n" for n in range(1, 25)]
    with pytest.raises(NotAnIndex, match="too many parts"):
        read(SOUND + "".join(levels))
