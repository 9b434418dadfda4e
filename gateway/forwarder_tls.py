"""TLS from this gateway to the forwarders of nodes: both sides show certificates of the same CA."""

import ssl
from pathlib import Path


class ForwarderTls:
    """Reads the files again when they change: a renewed certificate needs no restart."""

    def __init__(self, cert_file: Path, key_file: Path, ca_file: Path) -> None:
        self._files = (cert_file, key_file, ca_file)
        self._read_at: tuple[int, ...] = ()
        self._context: ssl.SSLContext | None = None

    def __call__(self) -> ssl.SSLContext:
        changed_at = tuple(file.stat().st_mtime_ns for file in self._files)
        if self._context is None or changed_at != self._read_at:
            self._context, self._read_at = self._load(), changed_at
        return self._context

    def _load(self) -> ssl.SSLContext:
        cert_file, key_file, ca_file = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the certificate and the name
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cafile=str(ca_file))
        context.load_cert_chain(cert_file, key_file)
        return context
