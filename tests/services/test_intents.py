"""Intents: from a request to what a node will do."""

import pytest

from nodesmith.contracts.nats.messages import UpgradePolicy
from nodesmith.contracts.temporal.operations import Intent
from nodesmith.domain.errors import NoBuildForNode
from nodesmith.domain.kinds import Kind
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.index import read_index
from nodesmith.gallery.tags import RegistryTags
from nodesmith.services.operations.intents import (
    NO_EFFECT,
    NO_EFFECT_ON_INSTALLED,
    OF_A_REPLICA,
    Intents,
    UriRules,
    intent_of,
)
from nodesmith.services.requested_work import RequestedBackend
from tests.gallery import wild
from tests.services.conftest import artifact_check, no_access
from tests.sources import LOCAL

URIS = UriRules(frozenset({"https", "oci"}), sources=LOCAL)


@pytest.fixture(scope="module")
def intents() -> Intents:
    only_amd = "- {name: odd, capabilities: {amd: rocm-odd}}\n- {name: rocm-odd, uri: registry.invalid/a/odd:1}\n"
    entries = read_index(wild.backend("engine") + only_amd, gallery="wild").entries
    return Intents(Catalogue(entries), URIS, RegistryTags(no_access, LOCAL), artifact_check())


@pytest.mark.parametrize(("capability", "build"), [("amd", "rocm"), ("nvidia", "cuda12"), ("", "cpu")])
def test_each_node_gets_the_build_for_its_hardware_under_one_family(
    intents: Intents, capability: str, build: str
) -> None:
    wanted = intents.wanted(Kind.INSTALL, RequestedBackend(backend="wild@Engine"), capability=capability)
    assert (wanted.backend, wanted.family) == (f"{build}-engine", "engine")
    assert wanted.mirrors == (wanted.uri.replace("registry", "mirror"),)


def test_a_build_by_its_own_name_locks_the_family_of_its_meta(intents: Intents) -> None:
    for kind in (Kind.INSTALL, Kind.REMOVE, Kind.ROLLBACK):
        assert intents.wanted(kind, RequestedBackend(backend="rocm-engine")).family == "engine"


def test_backend_unknown_to_all_galleries_can_be_removed(intents: Intents) -> None:
    assert intents.wanted(Kind.REMOVE, RequestedBackend(backend="Old/One")).family == "old__one"


def test_a_node_without_a_build_is_refused_at_admission(intents: Intents) -> None:
    with pytest.raises(NoBuildForNode, match="available: amd"):
        intents.wanted(Kind.INSTALL, RequestedBackend(backend="odd"), capability="nvidia")


# joining: the digest covers the complete intent ---------------------------------------------------------------

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
    "gallery": "other",
    "verified": "in another way",
    "model": "other",
    "replica_index": 1,
    "revision": 2,
}
"""another value for each field: a new field of `Intent` needs an entry, and so a decision, here"""


def test_every_intent_field_changes_the_digest_or_is_listed_as_without_effect() -> None:
    wanted = Intent(backend="echo", family="echo", version="1", uri="https://host/x.tar.gz", sha256="a" * 64)
    assert CHANGES.keys() == Intent.model_fields.keys()
    equal = {
        name
        for name, value in CHANGES.items()
        if intent_of(wanted.model_copy(update={name: value})) == intent_of(wanted)
    }
    assert {"family", "mirrors", "size", "gallery", "verified"} == NO_EFFECT
    assert {"model", "replica_index", "revision"} == OF_A_REPLICA
    assert equal == NO_EFFECT | OF_A_REPLICA


def test_a_load_of_another_replica_or_revision_is_another_intent() -> None:
    wanted = Intent(kind=Kind.LOAD, backend="llama#0", family="echo", model="llama", revision=1)
    others = [wanted.model_copy(update={name: CHANGES[name]}) for name in OF_A_REPLICA]
    assert len({intent_of(each) for each in (wanted, *others)}) == 1 + len(OF_A_REPLICA)


@pytest.mark.parametrize("kind", [Kind.REMOVE, Kind.ROLLBACK])
def test_removal_and_rollback_are_the_same_under_every_name_of_the_family(intents: Intents, kind: Kind) -> None:
    asked = [RequestedBackend(backend=name) for name in ("engine", "wild@Engine", "rocm-engine")]
    assert len({intent_of(intents.wanted(kind, each)) for each in asked}) == 1
    assert {"backend", "name", "alias"} == NO_EFFECT_ON_INSTALLED
    forced = RequestedBackend(backend="engine", force=True)
    assert intent_of(intents.wanted(kind, forced)) != intent_of(intents.wanted(kind, asked[0]))
