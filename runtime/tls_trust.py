"""TLS trust of a process: the CAs of the system, and ours if its file is set."""

import hashlib
import ssl
from pathlib import Path


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Create a TLS context that trusts the CAs of the system and the one in `ca_file`."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(cafile=str(ca_file))
    return context


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of the certificate, like `openssl x509 -fingerprint -sha256`."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
