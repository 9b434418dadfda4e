"""Breaks in signatures, in signed indexes, and in the choice of hosts that receive a registry's password."""

from typing import Any

from tests.mutations.arming import Break, rules


def _whatever_it_is_about(original: Any, payload: bytes, signature: str, digest: str, keys: Any) -> Any:
    import json

    said = json.loads(payload or b"{}")["critical"]["image"]["docker-manifest-digest"]
    return original(payload, signature, said, keys)


def _whoever_signed(original: Any, self: Any, key: Any) -> str:
    import re

    found = re.search(r"sha256:([0-9a-f]{64})", self.comment)
    return found[1] if found else ""


def _verify_from_nothing(original: Any, name: str, base: str, root: str, known: Any, download: Any) -> Any:
    return original(name, base, root, {}, download)


async def _do_not_ask(_: Any, self: Any, wanted: Any, trust: Any) -> list[str]:
    return ["nobody"]


async def _take_over_whatever_comes(original: Any, self: Any, name: str, fresh: Any) -> None:
    import dataclasses

    proof = fresh.proof and dataclasses.replace(fresh.proof, root_version=99)
    await original(self, name, dataclasses.replace(fresh, proof=proof))


async def _believe_the_first_time(_: Any, self: Any, builds: Any) -> Any:
    return dict(builds)


ARTIFACTS = (
    Break(
        rules("signatures"),
        "a signature of another image counts",
        "nodesmith.gallery.cosign:simple_signers",
        _whatever_it_is_about,
        tests=("test_the_signature_of_another_image_is_none",),
    ),
    Break(
        rules("signatures"),
        "any statement by a trusted key counts as a signature",
        "nodesmith.gallery.cosign:_is_about",
        lambda original, statement, sha256: True,
        tests=("test_an_attestation_by_the_same_key_is_no_signature", "test_an_image_is_signed_by_a_statement"),
    ),
    Break(
        rules("signatures"),
        "the trusted comment of a minisign signature is believed without its own signature",
        "nodesmith.gallery.minisign:Signature.states",
        _whoever_signed,
        tests=("test_another_file_another_key_and_another_comment_are_refused",),
    ),
    Break(
        rules("signatures"),
        "admission does not check signatures",
        "nodesmith.services.operations.artifact_check:ArtifactCheck._signers",
        _do_not_ask,
        tests=("test_an_image_without_a_signature_of_a_trusted_key_is_not_installed",),
    ),
    Break(
        rules("signatures"),
        "an expired index is installed from",
        "nodesmith.services.operations.artifact_check:ArtifactCheck._refuse_expired",
        lambda original, self, wanted, trust: None,
        tests=("test_expired_index_refuses_installs",),
    ),
    Break(
        rules("signatures"),
        "the index is not compared with what was signed",
        "nodesmith.gallery.signed_index:check",
        lambda original, proof, content: None,
        tests=("test_arbitrary_software_another_index_is_refused",),
    ),
    Break(
        rules("signatures"),
        "verified metadata are forgotten",
        "nodesmith.gallery.signed_index:verify",
        _verify_from_nothing,
        tests=(
            "test_rollback_to_an_older_index_is_refused",
            "test_a_rollback_is_refused_by_a_replica_that_has_just_started",
        ),
    ),
    Break(
        rules("signatures"),
        "an older signed index overwrites a newer one",
        "nodesmith.store.catalogue.galleries:GalleryTable.refreshed",
        _take_over_whatever_comes,
        tests=("test_of_two_readings_at_once_the_older_signed_index_never_wins",),
    ),
    Break(
        rules("signatures"),
        "a signed index may name images by tag",
        "nodesmith.gallery.index:_refuse_undigested",
        lambda original, artifact, trust: None,
        tests=("test_a_signed_index_that_names_a_tag_lists_it_as_unusable",),
    ),
    Break(
        rules("passwords"),
        "every token service gets the password",
        "nodesmith.gallery.registry:Registry._checked_realm",
        lambda original, self, reference, realm: realm,
        tests=("test_a_token_service_elsewhere_gets_the_password_only_if_it_is_allowed",),
    ),
    Break(
        rules("passwords"),
        "a token may be of any length",
        "nodesmith.gallery.registry:_LARGEST_TOKEN",
        lambda limit: 1 << 40,
        tests=("test_a_token_without_end_is_not_read",),
        waits=True,
    ),
    Break(
        rules("passwords"),
        "queries of addresses are shown to everybody",
        "nodesmith.contracts.http.shared:hide_queries",
        lambda original, *, hidden: original(hidden=False),
        tests=("test_queries_of_addresses_are_for_admins_only",),
    ),
    Break(
        rules("limits"),
        "an index may list any number of aliases",
        "nodesmith.gallery.yaml_documents:_measure",
        lambda original, root: None,
        tests=("test_shared_lists_are_not_unfolded",),
    ),
    Break(
        rules("artifacts"),
        "a retry of a batch is not verified again",
        "nodesmith.services.batches.batches:BatchService._verified",
        _believe_the_first_time,
        tests=("test_a_retry_is_refused_after_the_gallery_has_withdrawn_the_key",),
    ),
)
