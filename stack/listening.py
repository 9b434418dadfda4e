"""`--listen`: the address of this machine on which other machines reach the API and NATS over TLS."""

import ipaddress
import socket
from dataclasses import dataclass

from nodesmith.stack.errors import StackError


@dataclass(frozen=True)
class Listen:
    """The address as it was given, and the one to bind to."""

    name: str
    address: str

    def url(self, scheme: str, port: int) -> str:
        host = f"[{self.name}]" if ":" in self.name else self.name
        return f"{scheme}://{host}:{port}"


def resolve(name: str) -> Listen:
    """Resolve the address, and refuse an unusable one before any process is started."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StackError(
            f"--listen {name} is neither an address nor a name that can be resolved.",
            remedy="Give an address of this machine that the other machines reach.",
        ) from error
    address = str(found[0][4][0])
    _refuse_unreachable(name, address)
    return Listen(name, address)


def check_free(listen: Listen, *ports: int) -> None:
    """Check that the address belongs to this machine and that the ports are free on it."""
    for port in ports:
        family = socket.AF_INET6 if ":" in listen.address else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((listen.address, port))
            except OSError as error:
                raise StackError(
                    f"--listen {listen.name}: port {port} cannot be opened there ({error.strerror}).",
                    remedy="Give an address of this machine (`ip address` lists them), or another --port-base.",
                ) from error


def _refuse_unreachable(name: str, address: str) -> None:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if parsed.is_unspecified:
        raise StackError(
            f"--listen {name} names no address that another machine could use.",
            remedy="Give the one address that the other machines reach.",
        )
    if address in ("127.0.0.1", "::1"):
        raise StackError(
            f"--listen {name} is reached from this machine only, and everything listens there anyway.",
            remedy="Give the address that the other machines reach, or omit --listen.",
        )
