"""Whom a process trusts on TLS: the system's authorities, and ours if it has the file."""

import hashlib
import ssl
from pathlib import Path


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """The system's authorities, and the one in `ca_file` beside them."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(cafile=str(ca_file))
    return context


def fingerprint(pem: str) -> str:
    """SHA-256 of the certificate itself, as `openssl x509 -fingerprint -sha256` counts it."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
