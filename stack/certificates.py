"""TLS files of a home: one CA, a server certificate for an address, and a client certificate where it is needed."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodesmith.runtime.x509_parts import (
    Extension,
    builder,
    common_name,
    key_usage,
    leaf_extensions,
    pem,
    pem_of_key,
)
from nodesmith.stack.files import write_private

CA_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=397)
_RENEW_BEFORE = timedelta(days=90)
_LOCAL = ("127.0.0.1", "localhost")
_CLIENT = "client.nodesmith.internal"


@dataclass(frozen=True)
class Certificates:
    """The certificate files in `folder`; keys have mode 0600."""

    folder: Path
    lifetime: timedelta = LEAF_LIFETIME
    client_name: str = _CLIENT
    """name in the client certificate"""

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def server(self) -> Path:
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.folder / "server-key.pem"

    @property
    def client(self) -> Path:
        return self.folder / "client.pem"

    @property
    def client_key(self) -> Path:
        return self.folder / "client-key.pem"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca-key.pem"

    def ensure(self, address: str) -> None:
        """Create missing files; replace a server certificate that is for another address or expires soon."""
        self._ensure_ca()
        if not self._is_valid(self.server, self.server_key, _subject_names(address)):
            extensions = leaf_extensions(ExtendedKeyUsageOID.SERVER_AUTH, _subject_names(address))
            self._sign(self.server, self.server_key, common_name("Nodesmith"), extensions)

    def ensure_mutual(self, address: str) -> None:
        """Do the same as `ensure`, and create the certificate that this home's clients present."""
        self.ensure(address)
        self.ensure_client()

    def ensure_client(self) -> None:
        """Create the CA and the clients' certificate where they are missing, and no server's."""
        self._ensure_ca()
        names: list[x509.GeneralName] = [x509.DNSName(self.client_name)]
        if not self._is_valid(self.client, self.client_key, names):
            self._sign(
                self.client,
                self.client_key,
                common_name(self.client_name),
                leaf_extensions(ExtendedKeyUsageOID.CLIENT_AUTH, names),
            )

    def _ensure_ca(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self.ca.exists() and self.ca_key.exists()):
            self._make_ca()

    def _make_ca(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = common_name("Nodesmith CA")
        usage = key_usage(signs_certificates=True)
        made = builder(name, name, key.public_key(), CA_LIFETIME)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(usage, critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        write_private(self.ca_key, pem_of_key(key))
        write_private(self.ca, pem(made.sign(key, hashes.SHA256())))

    def _sign(self, file: Path, key_file: Path, subject: x509.Name, extensions: list[Extension]) -> None:
        ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
        ca_key = serialization.load_pem_private_key(self.ca_key.read_bytes(), password=None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self.ca_key} does not hold an elliptic-curve key.")
        key = ec.generate_private_key(ec.SECP256R1())
        made = builder(subject, ca.subject, key.public_key(), self.lifetime)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        for extension, critical in (*extensions, (issuer, False)):
            made = made.add_extension(extension, critical=critical)
        write_private(key_file, pem_of_key(key))
        write_private(file, pem(made.sign(ca_key, hashes.SHA256())))

    def _is_valid(self, file: Path, key_file: Path, wanted: list[x509.GeneralName]) -> bool:
        try:
            leaf = x509.load_pem_x509_certificate(file.read_bytes())
            ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
            leaf.verify_directly_issued_by(ca)
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound):
            return False
        is_current = leaf.not_valid_after_utc - datetime.now(UTC) > _RENEW_BEFORE
        return is_current and key_file.exists() and list(names) == wanted


def _subject_names(address: str) -> list[x509.GeneralName]:
    return [_subject_name(name) for name in dict.fromkeys((address, *_LOCAL))]


def _subject_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
