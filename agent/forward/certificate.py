"""The node's certificate for its forwarder: the key never leaves the node; the control plane signs a request."""

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nodesmith.agent.disk.durable_files import write_durably
from nodesmith.domain.forwarding import node_name
from nodesmith.runtime.x509_parts import common_name, pem_of_key


class NodeCertificate:
    """The files `key.pem`, `cert.pem` and `ca.pem` of a folder. Blocking."""

    def __init__(self, folder: Path) -> None:
        self.key_file = folder / "key.pem"
        self.cert_file = folder / "cert.pem"
        self.ca_file = folder / "ca.pem"

    def needs_renewal(self, now: datetime | None = None) -> bool:
        """Whether a third of its life, or less, is left."""
        due = self.renewal_due()
        return due is None or due < (now or datetime.now(UTC))

    def renewal_due(self) -> datetime | None:
        """When a third of its life is left; None without a certificate."""
        if (found := self._stored()) is None:
            return None
        return found.not_valid_after_utc - (found.not_valid_after_utc - found.not_valid_before_utc) / 3

    def is_for(self, node_id: str) -> bool:
        """Whether there is a certificate of that node, and it has not expired."""
        found = self._stored()
        if found is None or found.not_valid_after_utc < datetime.now(UTC):
            return False
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return node_name(node_id) in names.get_values_for_type(x509.DNSName)

    def changed_at(self) -> int:
        """When the certificate was stored, in nanoseconds."""
        return self.cert_file.stat().st_mtime_ns

    def request(self) -> str:
        """A request for the node's key, which is made if there is none."""
        name = common_name("Nodesmith node")
        return (
            x509.CertificateSigningRequestBuilder()
            .subject_name(name)
            .sign(self._key(), hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
            .decode()
        )

    def store(self, certificate: str, ca: str) -> None:
        write_durably(self.ca_file, ca.encode())
        write_durably(self.cert_file, certificate.encode())

    def forget(self) -> None:
        """Delete the certificate: the control plane no longer signs any."""
        self.cert_file.unlink(missing_ok=True)

    def _stored(self) -> x509.Certificate | None:
        try:
            return x509.load_pem_x509_certificate(self.cert_file.read_bytes())
        except (OSError, ValueError):
            return None

    def _key(self) -> ec.EllipticCurvePrivateKey:
        if self.key_file.exists():
            key = serialization.load_pem_private_key(self.key_file.read_bytes(), password=None)
            if isinstance(key, ec.EllipticCurvePrivateKey):
                return key
        made = ec.generate_private_key(ec.SECP256R1())
        self.key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(self.key_file, pem_of_key(made).encode())
        return made
