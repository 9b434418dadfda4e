import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesmith.domain.identity import LONGEST_FAMILY, derived_op_id, family_of, intent_digest, new_op_id


def test_an_op_id_is_a_uuid_of_version_7() -> None:
    made = uuid.UUID(new_op_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_op_ids_sort_by_the_millisecond_of_their_birth() -> None:
    made = []
    for _ in range(20):
        made.append(new_op_id())
        born = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == born:
            pass
    assert made == sorted(made)


def test_op_ids_of_one_millisecond_differ() -> None:
    made = [new_op_id() for _ in range(10_000)]
    assert len(set(made)) == len(made)


def test_a_derived_id_is_the_same_on_every_replica() -> None:
    assert derived_op_id("batch-1", "node-1") == derived_op_id("batch-1", "node-1")


def test_parts_of_a_derived_id_do_not_run_together() -> None:
    assert derived_op_id("ab", "c") != derived_op_id("a", "bc")


@pytest.mark.parametrize(
    ("name", "alias", "uri", "family"),
    [
        ("llama-cpp", "", "", "llama-cpp"),
        ("LocalAI@Llama-CPP", "", "", "llama-cpp"),
        ("gallery@acme/whisper", "", "", "acme__whisper"),
        (" echo ", "", "", "echo"),
        ("echo", "Voice", "", "voice"),
        ("echo", "", "https://mirror.invalid/other.tar.gz", "echo"),
        ("", "", "https://mirror.invalid/files/Echo-2.tar.gz?signature=x", "echo-2"),
        ("", "", "file:///srv/backends/vllm.tgz", "vllm"),
        ("", "", "oci://registry.invalid/team/Engine:latest-cpu", "engine"),
        ("", "", "registry.invalid:5000/team/engine@sha256:abc", "engine"),
        ("", "", "registry.invalid/team/engine:1@sha256:abc", "engine"),
        ("", "alias", "file:///srv/backends/vllm.tgz", "alias"),
        ("STRASSE", "", "", "strasse"),
        ("straße", "", "", "strasse"),
    ],
)
def test_every_spelling_of_a_backend_has_one_family(name: str, alias: str, uri: str, family: str) -> None:
    assert family_of(name, alias=alias, uri=uri) == family


def test_a_family_of_180_characters_is_kept_whole() -> None:
    assert family_of("x" * LONGEST_FAMILY) == "x" * 180


def test_a_longer_family_is_cut_and_distinguished_by_its_digest() -> None:
    one, other = family_of("x" * 181), family_of("x" * 180 + "y")
    assert one[:141] == other[:141] == "x" * 140 + "~"
    assert len(one) == len(other) == 157
    assert one != other


@given(st.text(max_size=400))
def test_a_family_fits_into_a_workflow_id_and_is_a_family_of_itself(name: str) -> None:
    family = family_of(name)
    assert len(family) <= LONGEST_FAMILY
    assert "/" not in family
    assert family_of(family) == family


INTENT = {"kind": "install", "version": "1", "uri": "", "force": False}


def test_equal_intents_have_equal_digests_in_whatever_order() -> None:
    assert intent_digest(INTENT) == intent_digest(dict(reversed(INTENT.items())))


@pytest.mark.parametrize("other", [{"kind": "remove"}, {"version": "2"}, {"uri": "file:///x"}, {"force": True}])
def test_each_part_of_an_intent_counts(other: dict[str, object]) -> None:
    assert intent_digest(INTENT) != intent_digest({**INTENT, **other})


def test_parts_of_an_intent_do_not_run_together() -> None:
    one = intent_digest({**INTENT, "version": '1","'})
    assert one != intent_digest({**INTENT, "uri": '","'})
