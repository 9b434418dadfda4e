import pytest
from pydantic import ValidationError

from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.contracts.http.nodes import NodeView
from nodesmith.contracts.http.operations import InstallRequest
from nodesmith.domain.node import NodeStatus, Protocol

DIGEST = "ab" * 32


@pytest.mark.parametrize("digest", ["", DIGEST, DIGEST.upper(), f"sha256:{DIGEST}"])
def test_a_digest_may_be_absent_bare_or_prefixed(digest: str) -> None:
    assert InstallRequest(backend="echo", sha256=digest).sha256 == digest


@pytest.mark.parametrize("digest", ["ab", "md5:" + DIGEST, DIGEST + "0", "x" * 64])
def test_what_is_not_a_sha256_is_refused(digest: str) -> None:
    with pytest.raises(ValidationError):
        InstallRequest(backend="echo", sha256=digest)


def test_a_localai_worker_registers_with_null_labels_and_no_protocol() -> None:
    request = RegisterRequest.model_validate_json('{"name":"w1","labels":null,"total_disk":0,"token":"t"}')
    assert (request.labels, request.protocol, request.total_disk) == ({}, Protocol.LOCALAI, 0)


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_node_needs_a_name_that_can_be_stored(name: str) -> None:
    with pytest.raises(ValidationError):
        RegisterRequest(name=name)


def test_a_status_of_a_newer_api_reads_as_unknown() -> None:
    view = NodeView.model_validate_json(
        '{"id":"1","name":"n","node_type":"backend","protocol":2,"status":"hibernating",'
        '"created_at":"2026-11-16T00:00:00Z","updated_at":"2026-11-16T00:00:00Z"}'
    )
    assert view.status is NodeStatus.UNKNOWN
