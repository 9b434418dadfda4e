import pytest

from gallery.catalogue import Catalogue, read_index

INDEX = """
- &llama
  name: Llama/Cpp
  version: "1.9"
  uri: https://mirror.invalid/llama-1.9.tar.gz
  sha256: aa
  icon: ignored.png
- <<: *llama
  version: "1.10"
- <<: *llama
  version: 1.10-rc1
- <<: *llama
  version: "2"
  tags: [broken]
- name: unversioned
  uri: https://mirror.invalid/unversioned.tar.gz
"""


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue(read_index(INDEX, gallery="Main"))


def version_of(catalogue: Catalogue, backend: str, version: str = "") -> str | None:
    artifact = catalogue.resolve(backend, version)
    return artifact.version if artifact else None


@pytest.mark.parametrize("name", ["Llama/Cpp", "llama/cpp", "LLAMA__CPP", "main@llama/cpp", "MAIN@Llama__cpp"])
def test_a_backend_is_found_under_every_spelling_of_its_name(catalogue: Catalogue, name: str) -> None:
    assert version_of(catalogue, name) == "1.10"


@pytest.mark.parametrize("name", ["llama", "", "other@llama/cpp", "main@"])
def test_a_name_that_no_gallery_has_resolves_to_nothing(catalogue: Catalogue, name: str) -> None:
    assert catalogue.resolve(name) is None


def test_a_broken_version_is_taken_only_by_name(catalogue: Catalogue) -> None:
    assert version_of(catalogue, "llama/cpp") == "1.10"
    assert version_of(catalogue, "llama/cpp", "2") == "2"


def test_a_version_that_is_not_there_is_not_replaced_by_another(catalogue: Catalogue) -> None:
    assert catalogue.resolve("llama/cpp", "1.8") is None


def test_an_entry_without_a_version_resolves(catalogue: Catalogue) -> None:
    assert version_of(catalogue, "unversioned") == ""


def test_entries_are_listed_by_name_and_newest_first(catalogue: Catalogue) -> None:
    assert [(entry.name, entry.version) for entry in catalogue.entries()] == [
        ("Llama/Cpp", "2"),
        ("Llama/Cpp", "1.10"),
        ("Llama/Cpp", "1.10-rc1"),
        ("Llama/Cpp", "1.9"),
        ("unversioned", ""),
    ]


def test_an_index_that_is_a_web_page_is_refused() -> None:
    with pytest.raises(TypeError, match="index of gallery Main is not a list"):
        read_index("<html>sorry</html>", gallery="Main")
