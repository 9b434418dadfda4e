"""The CA is created once; the server's certificate is renewed for a new address."""

import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from nodesmith.runtime.tls_trust import fingerprint, trusting
from nodesmith.stack.certificates import Certificates
from nodesmith.stack.errors import StackError
from nodesmith.stack.listening import check_free, resolve
from tests.servers import free_port


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    certificates = Certificates(tmp_path / "tls")
    certificates.ensure("10.0.0.5")
    return certificates


def alternatives(certificates: Certificates) -> list[str]:
    server = x509.load_pem_x509_certificate(certificates.server.read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def test_the_address_is_in_the_certificate_and_keys_are_private(certificates: Certificates) -> None:
    assert alternatives(certificates) == ["10.0.0.5", "127.0.0.1", "localhost"]
    for key in certificates.folder.glob("*-key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificates.server, certificates.server_key)
    trusting(certificates.ca)


def test_restart_keeps_all_files_and_a_new_address_replaces_only_the_certificate(certificates: Certificates) -> None:
    ca, server = certificates.ca.read_text(), certificates.server.read_text()
    certificates.ensure("10.0.0.5")
    assert certificates.server.read_text() == server
    certificates.ensure("gpu-head.example")
    assert alternatives(certificates)[0] == "gpu-head.example"
    assert certificates.ca.read_text() == ca, "nodes that joined still trust it"


def test_a_certificate_near_its_end_is_renewed(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    server = x509.load_pem_x509_certificate(certificates.server.read_bytes())
    left = server.not_valid_after_utc - datetime.now(UTC)
    monkeypatch.setattr("nodesmith.stack.certificates._RENEW_BEFORE", left)
    certificates.ensure("10.0.0.5")
    assert x509.load_pem_x509_certificate(certificates.server.read_bytes()) != server


def test_the_fingerprint_is_openssls(certificates: Certificates) -> None:
    pem = certificates.ca.read_text()
    assert fingerprint(pem) == x509.load_pem_x509_certificate(pem.encode()).fingerprint(hashes.SHA256()).hex()


@pytest.mark.parametrize("useless", ["0.0.0.0", "::", "127.0.0.1", "localhost", "no-such-host.invalid"])
def test_address_unreachable_for_other_machines_is_refused(useless: str) -> None:
    with pytest.raises(StackError, match="--listen"):
        resolve(useless)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(StackError, match="cannot be opened"):
        check_free(resolve("192.0.2.1"), free_port())
