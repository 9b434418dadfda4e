"""The sockets of an HTTP process: plain on this machine, and with TLS for other machines."""

import socket
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from nodesmith.domain.errors import InvalidRequest

HANDSHAKE_S = 10.0
"""time for a client to finish its TLS handshake"""


def bind(host: str, port: int) -> socket.socket:
    """Bind the port before any connection is opened."""
    listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    # asyncio sets TCP_NODELAY only on sockets whose proto is TCP; without it every response took 40 ms longer.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


@dataclass(frozen=True)
class Encrypted:
    """The TLS listener for other machines."""

    socket: socket.socket
    context: ssl.SSLContext


def bind_encrypted(
    host: str, port: int, *, cert_file: Path | None, key_file: Path | None, closing: AsyncExitStack
) -> Encrypted | None:
    """Open the TLS listener; None without a host."""
    if not host:
        return None
    if cert_file is None or key_file is None:
        raise InvalidRequest("NODESMITH_LISTEN_HOST needs NODESMITH_TLS_CERT_FILE and NODESMITH_TLS_KEY_FILE.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert_file, key_file)
    return Encrypted(closing.enter_context(bind(host, port)), context)
