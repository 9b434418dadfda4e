"""From what was asked to what a node is told."""

import pytest

from contracts.operation_http import InstallRequest
from domain.errors import NoBuildForNode
from domain.operation import Kind
from gallery.catalogue import Catalogue
from gallery.index import read_index
from gallery.tags import RegistryTags
from services.intents import Intents, UriRules
from tests.gallery import wild
from tests.services.conftest import no_access


@pytest.fixture(scope="module")
def intents() -> Intents:
    only_amd = "- {name: odd, capabilities: {amd: rocm-odd}}\n- {name: rocm-odd, uri: registry.invalid/a/odd:1}\n"
    entries = read_index(wild.backend("engine") + only_amd, gallery="wild").entries
    return Intents(Catalogue(entries), UriRules(frozenset({"https", "oci"})), RegistryTags(no_access))


@pytest.mark.parametrize(("capability", "build"), [("amd", "rocm"), ("nvidia", "cuda12"), ("", "cpu")])
def test_each_node_gets_the_build_for_its_hardware_under_one_family(
    intents: Intents, capability: str, build: str
) -> None:
    wanted = intents.wanted(Kind.INSTALL, InstallRequest(backend="wild@Engine"), capability=capability)
    assert (wanted.backend, wanted.family) == (f"{build}-engine", "engine")
    assert wanted.mirrors == (wanted.uri.replace("registry", "mirror"),)


def test_a_build_by_its_own_name_locks_the_family_of_its_meta(intents: Intents) -> None:
    for kind in (Kind.INSTALL, Kind.REMOVE, Kind.ROLLBACK):
        assert intents.wanted(kind, InstallRequest(backend="rocm-engine")).family == "engine"


def test_what_no_gallery_knows_can_still_be_removed(intents: Intents) -> None:
    assert intents.wanted(Kind.REMOVE, InstallRequest(backend="Old/One")).family == "old__one"


def test_a_node_without_a_build_is_refused_at_admission(intents: Intents) -> None:
    with pytest.raises(NoBuildForNode, match="there is one for amd"):
        intents.wanted(Kind.INSTALL, InstallRequest(backend="odd"), capability="nvidia")
