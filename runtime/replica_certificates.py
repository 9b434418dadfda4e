"""Signs the certificates with which nodes prove to gateways that a replica is theirs."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.forwarding import node_name
from nodesmith.runtime.x509_parts import builder, common_name, leaf_extensions, pem

LIFETIME = timedelta(days=30)


@dataclass(frozen=True)
class ReplicaAuthority:
    """The CA between gateways and nodes. It is not the CA of the API: its key lets nobody pretend to be the API."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def load(cls, ca_file: Path, key_file: Path) -> "ReplicaAuthority":
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{key_file} does not hold an elliptic-curve key.")
        return cls(x509.load_pem_x509_certificate(ca_file.read_bytes()), key)

    @property
    def ca(self) -> str:
        """The certificate of the CA, in PEM."""
        return pem(self.certificate)

    def sign_node(self, request: str, node_id: str) -> str:
        """Sign a node's key. The names are ours, whatever the request says."""
        names: list[x509.GeneralName] = [x509.DNSName(node_name(node_id))]
        subject = common_name(f"Nodesmith node {node_id}"[:64])
        made = builder(subject, self.certificate.subject, _key_of(request), LIFETIME)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        for extension, critical in (*leaf_extensions(ExtendedKeyUsageOID.SERVER_AUTH, names), (issuer, False)):
            made = made.add_extension(extension, critical=critical)
        return pem(made.sign(self.key, hashes.SHA256()))


def _key_of(request: str) -> ec.EllipticCurvePublicKey:
    try:
        parsed = x509.load_pem_x509_csr(request.encode())
    except ValueError as error:
        raise _invalid("is not a certificate request in PEM") from error
    key = parsed.public_key()
    if not parsed.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
        raise _invalid("must be signed with its own elliptic-curve key")
    return key


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(f"certificate_request: {why}.", field="certificate_request")
