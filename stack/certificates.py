"""TLS files of a home: one CA, a server certificate for an address, and a client certificate where it is needed."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodesmith.stack.files import write_private

CA_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=397)
_RENEW_BEFORE = timedelta(days=90)
_CLOCK_SKEW = timedelta(hours=1)
_LOCAL = ("127.0.0.1", "localhost")
_CLIENT = "client.nodesmith.internal"
_Extension = tuple[x509.ExtensionType, bool]
"""the extension, and whether it is critical"""


@dataclass(frozen=True)
class Certificates:
    """The certificate files in `folder`; keys have mode 0600."""

    folder: Path
    lifetime: timedelta = LEAF_LIFETIME

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
    def _ca_key(self) -> Path:
        return self.folder / "ca-key.pem"

    def ensure(self, address: str) -> None:
        """Create missing files; replace a server certificate that is for another address or expires soon."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self.ca.exists() and self._ca_key.exists()):
            self._make_ca()
        if not self._is_valid(self.server, self.server_key, _subject_names(address)):
            extensions = _leaf_extensions(ExtendedKeyUsageOID.SERVER_AUTH, _subject_names(address))
            self._sign(self.server, self.server_key, _name("Nodesmith"), extensions)

    def ensure_mutual(self, address: str) -> None:
        """Do the same as `ensure`, and create the certificate that this home's clients present."""
        self.ensure(address)
        names: list[x509.GeneralName] = [x509.DNSName(_CLIENT)]
        if not self._is_valid(self.client, self.client_key, names):
            self._sign(
                self.client,
                self.client_key,
                _name(_CLIENT),
                _leaf_extensions(ExtendedKeyUsageOID.CLIENT_AUTH, names),
            )

    def _make_ca(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Nodesmith CA")
        usage = _key_usage(signs_certificates=True)
        builder = _builder(name, name, key.public_key(), CA_LIFETIME)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        write_private(self._ca_key, _pem_of_key(key))
        write_private(self.ca, _pem(builder.sign(key, hashes.SHA256())))

    def _sign(self, file: Path, key_file: Path, subject: x509.Name, extensions: list[_Extension]) -> None:
        ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
        ca_key = serialization.load_pem_private_key(self._ca_key.read_bytes(), password=None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self._ca_key} does not hold an elliptic-curve key.")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, ca.subject, key.public_key(), self.lifetime)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        for extension, critical in (*extensions, (issuer, False)):
            builder = builder.add_extension(extension, critical=critical)
        write_private(key_file, _pem_of_key(key))
        write_private(file, _pem(builder.sign(ca_key, hashes.SHA256())))

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


def _leaf_extensions(usage: x509.ObjectIdentifier, names: list[x509.GeneralName]) -> list[_Extension]:
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([usage]), False),
        (x509.SubjectAlternativeName(names), False),
    ]


def _subject_names(address: str) -> list[x509.GeneralName]:
    return [_subject_name(name) for name in dict.fromkeys((address, *_LOCAL))]


def _subject_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
