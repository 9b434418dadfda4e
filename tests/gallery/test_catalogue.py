"""Resolving a name to the artifact that a node fetches."""

import pytest

from nodesmith.domain.artifact import Artifact
from nodesmith.domain.errors import NoBuildForNode
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.index import merged, read_index
from nodesmith.gallery.suitability import Suitability, capability_of, suitability
from tests.gallery import wild

INDEX = """
- &llama
  name: Llama/Cpp
  version: "1.9"
  uri: registry.invalid/forge/llama:1.9
  icon: ignored.png
- <<: *llama
  version: "1.10"
- <<: *llama
  version: 1.10-rc1
- <<: *llama
  version: "2"
  tags: [broken]
- name: unversioned
  uri: registry.invalid/forge/unversioned:1
"""


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue(read_index(INDEX, gallery="Main").entries)


@pytest.fixture(scope="module")
def in_the_wild() -> Catalogue:
    return Catalogue(read_index(wild.backend("engine"), gallery="wild").entries)


def version_of(catalogue: Catalogue, backend: str, version: str = "") -> str | None:
    artifact = catalogue.resolve(backend, version)
    return artifact.version if artifact else None


def name_of(catalogue: Catalogue, backend: str, capability: str) -> str | None:
    artifact = catalogue.resolve(backend, capability=capability)
    return artifact.name if artifact else None


@pytest.mark.parametrize("name", ["Llama/Cpp", "llama/cpp", "LLAMA__CPP", "main@llama/cpp", "MAIN@Llama__cpp"])
def test_a_backend_is_found_under_every_spelling_of_its_name(catalogue: Catalogue, name: str) -> None:
    assert version_of(catalogue, name) == "1.10"


@pytest.mark.parametrize("name", ["llama", "", "other@llama/cpp", "main@"])
def test_a_name_that_no_gallery_has_resolves_to_nothing(catalogue: Catalogue, name: str) -> None:
    assert catalogue.resolve(name) is None
    assert catalogue.concrete_alternative(name) is None


def test_a_broken_version_is_taken_only_by_name(catalogue: Catalogue) -> None:
    assert version_of(catalogue, "llama/cpp") == "1.10"
    assert version_of(catalogue, "llama/cpp", "2") == "2"


def test_a_version_that_is_not_there_is_not_replaced_by_another(catalogue: Catalogue) -> None:
    assert catalogue.resolve("llama/cpp", "1.8") is None


def test_an_entry_without_a_version_resolves(catalogue: Catalogue) -> None:
    assert version_of(catalogue, "unversioned") == ""


def test_entries_are_listed_by_name_and_newest_first(catalogue: Catalogue) -> None:
    assert [(entry.artifact.name, entry.artifact.version) for entry in catalogue.listed()] == [
        ("Llama/Cpp", "2"),
        ("Llama/Cpp", "1.10"),
        ("Llama/Cpp", "1.10-rc1"),
        ("Llama/Cpp", "1.9"),
        ("unversioned", ""),
    ]


def test_the_gallery_that_is_named_first_wins_unless_another_is_named() -> None:
    one, other = (f"- {{name: tool, version: '{n}', uri: registry.invalid/a/tool:{n}}}" for n in (1, 2))
    both = Catalogue(merged([read_index(one, gallery="one"), read_index(other, gallery="other")]).entries)
    assert version_of(both, "tool") == "1"
    assert version_of(both, "other@tool") == "2"


@pytest.mark.parametrize(("capability", "build"), [*wild.HARDWARE.items(), ("disable", "cpu"), ("", "cpu")])
@pytest.mark.parametrize("name", ["engine", "wild@ENGINE"])
def test_a_meta_leads_to_the_build_for_the_node(in_the_wild: Catalogue, name: str, capability: str, build: str) -> None:
    assert name_of(in_the_wild, name, capability) == f"{build}-engine"
    assert name_of(in_the_wild, f"{name}-development", capability) == f"{build}-engine-development"


def test_capabilities_have_no_implicit_fallbacks() -> None:
    """Contract 6.3: nvidia-cuda-13 does not fall to nvidia; default, then cpu, else nothing."""
    builds = "".join(f"- {{name: {each}, uri: r.invalid/a/{each}:1}}\n" for each in "nc")
    text = f"- name: m\n  capabilities: {{nvidia: n, cpu: c}}\n{builds}"
    assert name_of(Catalogue(read_index(text, gallery="g").entries), "m", "nvidia-cuda-13") == "c"


def test_error_for_a_node_without_a_build_lists_the_builds() -> None:
    text = "- name: m\n  capabilities: {nvidia: n, amd: gone}\n- {name: n, uri: r.invalid/a/n:1}"
    catalogue = Catalogue(read_index(text, gallery="g").entries)
    with pytest.raises(NoBuildForNode, match="m has no build for metal; available: amd, nvidia"):
        catalogue.resolve("m", capability="metal")
    with pytest.raises(NoBuildForNode, match="names gone, which does not exist there"):
        catalogue.resolve("m", capability="amd")


def test_a_version_is_asked_of_the_build_when_the_meta_has_none() -> None:
    text = "- name: m\n  capabilities: {default: c}\n" + "".join(
        f"- {{name: c, version: '{version}', uri: r.invalid/a/c:{version}}}\n" for version in (1, 2)
    )
    catalogue = Catalogue(read_index(text, gallery="g").entries)
    assert (version_of(catalogue, "m"), version_of(catalogue, "m", "1")) == ("2", "1")
    with pytest.raises(NoBuildForNode, match="names c 3"):
        catalogue.resolve("m", "3")


@pytest.mark.parametrize(
    ("capability", "build"),
    [("nvidia", "cuda12-t"), ("amd", "rocm-t"), ("default", "cpu-t"), ("vulkan", "vulkan-t"), ("intel", "cpu-t")],
)
def test_an_alias_leads_to_the_best_build_for_the_node(capability: str, build: str) -> None:
    builds = ("cpu", "vulkan", "cuda12", "rocm")
    text = "".join(f"- {{name: {each}-t, alias: tool, uri: r.invalid/a/t:{each}}}\n" for each in builds)
    assert name_of(Catalogue(read_index(text, gallery="g").entries), "tool", capability) == build


def test_build_for_some_hardware_names_its_alternative(in_the_wild: Catalogue) -> None:
    assert in_the_wild.concrete_alternative("cuda12-engine") == "engine"
    assert in_the_wild.concrete_alternative("wild@rocm-engine-development") == "engine-development"
    assert in_the_wild.concrete_alternative("engine") is None
    alone = Catalogue(
        read_index("- {name: rocm-x, uri: r.invalid/a/x:1}\n- {name: x, uri: r.invalid/a/x:2}", gallery="g").entries
    )
    assert alone.concrete_alternative("rocm-x") == ""
    assert alone.concrete_alternative("x") is None


BUILDS = {
    "cpu-llama": ("default", "metal"),
    "metal-llama": ("metal", "darwin-x86"),
    "nvidia-l4t-arm64-llama": ("nvidia-l4t", "nvidia-l4t-cuda-12"),
    "cuda12-llama": ("nvidia", "nvidia-cuda-13", "nvidia-l4t"),
    "rocm-llama": ("amd",),
    "intel-sycl-f16-llama": ("intel",),
    "llama-amd64": ("default", "nvidia", "intel"),
}


@pytest.mark.parametrize(("name", "capability"), [(name, each) for name, fit in BUILDS.items() for each in fit])
def test_build_fits_the_hardware_in_its_name(name: str, capability: str) -> None:
    assert suitability(artifact(name), capability) is Suitability.COMPATIBLE


@pytest.mark.parametrize(
    ("name", "capability", "platform", "reported"),
    [
        ("cuda12-llama", "default", "", Suitability.OVERRIDE),
        ("rocm-llama", "nvidia", "linux/amd64", Suitability.OVERRIDE),
        ("nvidia-l4t-arm64-llama", "nvidia", "", Suitability.OVERRIDE),
        ("nvidia-l4t-arm64-llama", "nvidia", "linux/amd64", Suitability.IMPOSSIBLE),
        ("cuda12-llama", "metal", "", Suitability.IMPOSSIBLE),
        ("metal-llama", "nvidia", "", Suitability.IMPOSSIBLE),
        ("llama", "nvidia", "linux/arm64", Suitability.IMPOSSIBLE),
        ("llama", "nvidia", "linux/amd64", Suitability.COMPATIBLE),
    ],
)
def test_other_hardware_may_be_overridden_another_system_may_not(
    name: str, capability: str, platform: str, reported: Suitability
) -> None:
    platforms = ("linux/amd64",) if name == "llama" else ()
    assert suitability(artifact(name, platforms), capability, platform) is reported


def test_a_node_that_does_not_say_what_it_is_counts_by_its_card() -> None:
    assert capability_of("amd", "nvidia", 0) == "amd"
    assert capability_of(None, "nvidia", 8 * 1024**3) == "nvidia"
    assert capability_of("", "nvidia", 4 * 1024**3) == "default"
    assert capability_of(None, None, None) == "default"


def artifact(name: str, platforms: tuple[str, ...] = ()) -> Artifact:
    return Artifact(name=name, version="", uri=f"intel.invalid/forge/{name}:1", sha256="", size=0, platforms=platforms)
