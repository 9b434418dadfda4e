"""From what was asked to what a node is told."""

import pytest

from contracts.messages import UpgradePolicy
from contracts.operation_http import InstallRequest
from contracts.temporal import Wanted
from domain.errors import NoBuildForNode
from domain.operation import Kind
from gallery.catalogue import Catalogue
from gallery.index import read_index
from gallery.tags import RegistryTags
from services.intents import LEFT_TO_NODE, SAME_RESULT, Intents, UriRules, intent_of
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


# joining: the digest covers the whole of what is wanted -------------------------------------------------------

CHANGES: dict[str, object] = {
    "kind": Kind.UPGRADE,
    "backend": "other",
    "family": "other",
    "version": "2",
    "uri": "https://host/other.tar.gz",
    "mirrors": ("https://mirror/x.tar.gz",),
    "sha256": "b" * 64,
    "size": 7,
    "name": "other",
    "alias": "other",
    "force": True,
    "start": True,
    "upgrade_policy": UpgradePolicy.OVERLAP,
}
"""another value for each field: a new field of `Wanted` needs one here, and so a decision"""


def test_every_field_of_what_is_wanted_counts_or_is_known_to_change_nothing() -> None:
    wanted = Wanted(backend="echo", family="echo", version="1", uri="https://host/x.tar.gz", sha256="a" * 64)
    assert CHANGES.keys() == Wanted.model_fields.keys()
    equal = {
        name
        for name, value in CHANGES.items()
        if intent_of(wanted.model_copy(update={name: value})) == intent_of(wanted)
    }
    assert equal == SAME_RESULT == {"family", "mirrors", "size"}


@pytest.mark.parametrize("kind", [Kind.REMOVE, Kind.ROLLBACK])
def test_removal_and_rollback_are_the_same_under_every_name_of_the_family(intents: Intents, kind: Kind) -> None:
    asked = [InstallRequest(backend=name) for name in ("engine", "wild@Engine", "rocm-engine")]
    assert len({intent_of(intents.wanted(kind, each)) for each in asked}) == 1
    assert {"backend", "name", "alias"} == LEFT_TO_NODE
    forced = InstallRequest(backend="engine", force=True)
    assert intent_of(intents.wanted(kind, forced)) != intent_of(intents.wanted(kind, asked[0]))
