"""TLS of a home: a CA made once, and a server certificate for the address that other machines use."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stack.files import write_private

_CA_LIFETIME = timedelta(days=3650)
_SERVER_LIFETIME = timedelta(days=397)
_RENEW_BEFORE = timedelta(days=90)
_CLOCKS_DIFFER = timedelta(hours=1)
_LOCAL = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Certificates:
    """The files of `folder`; keys are 0600."""

    folder: Path

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
    def _ca_key(self) -> Path:
        return self.folder / "ca-key.pem"

    def ensure(self, address: str) -> None:
        """Make what is missing; a server certificate for another address, or near its end, is made anew."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self.ca.exists() and self._ca_key.exists()):
            self._make_ca()
        if not self._is_good_for(address):
            self._make_server(address)

    def _make_ca(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Nodesmith CA")
        usage = _key_usage(signs_certificates=True)
        builder = _builder(name, name, key.public_key(), _CA_LIFETIME)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        write_private(self._ca_key, _pem_of_key(key))
        write_private(self.ca, _pem(builder.sign(key, hashes.SHA256())))

    def _make_server(self, address: str) -> None:
        ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
        ca_key = serialization.load_pem_private_key(self._ca_key.read_bytes(), password=None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self._ca_key} holds a key of another kind.")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name("Nodesmith"), ca.subject, key.public_key(), _SERVER_LIFETIME)
        for extension, critical in _server_extensions(address, ca_key.public_key()):
            builder = builder.add_extension(extension, critical=critical)
        write_private(self.server_key, _pem_of_key(key))
        write_private(self.server, _pem(builder.sign(ca_key, hashes.SHA256())))

    def _is_good_for(self, address: str) -> bool:
        try:
            server = x509.load_pem_x509_certificate(self.server.read_bytes())
            ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
            server.verify_directly_issued_by(ca)
            names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound):
            return False
        lasts = server.not_valid_after_utc - datetime.now(UTC) > _RENEW_BEFORE
        return lasts and self.server_key.exists() and list(names) == _alternatives(address)


def _server_extensions(address: str, issuer: ec.EllipticCurvePublicKey) -> list[tuple[x509.ExtensionType, bool]]:
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName(_alternatives(address)), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), False),
    ]


def _alternatives(address: str) -> list[x509.GeneralName]:
    return [_alternative(name) for name in dict.fromkeys((address, *_LOCAL))]


def _alternative(name: str) -> x509.GeneralName:
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
        .not_valid_before(now - _CLOCKS_DIFFER)
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
