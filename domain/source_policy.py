"""The allow list for artifact and gallery sources: hosts, networks and folders."""

import ipaddress
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote, urlsplit

from nodesmith.domain.errors import SourceNotAllowed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOCAL_NAMES = ("localhost", "*.localhost")
_LOOPBACK = ipaddress.ip_address("127.0.0.1")
_MOST_NUMBERS = 4
_IPV4 = 4
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""all public IPv6 addresses; `is_global` of Python also accepts addresses that lead into private
networks: other NAT64 prefixes, IPv4-compatible, translated and site-local addresses"""
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(each) for each in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "3fff::/20")
)
"""public for some versions of Python: the metadata services of Azure and Oracle, 6to4 relays, documentation"""


@dataclass(frozen=True)
class SourcePolicy:
    """Which sources are allowed. By default: every host with a public address, and no folder."""

    hosts: tuple[str, ...] = ()
    """host names or patterns such as `*.example.com`; empty: every host"""
    networks: tuple[Network, ...] = ()
    """allowed networks that are not public: private, loopback, link-local"""
    folders: tuple[str, ...] = ()
    """folders below which `file://` may read"""

    def check_host(self, host: str) -> None:
        """Check a host before it is resolved; a literal IP address is checked as an address."""
        name = host.strip("[]").casefold().rstrip(".")
        address = _address(name)
        if address is None and any(fnmatchcase(name, local) for local in _LOCAL_NAMES):
            address = _LOOPBACK
        if self.hosts and not any(fnmatchcase(name, allowed.casefold()) for allowed in self.hosts):
            raise refused(host)
        if address is not None and not self.allows_address(address):
            raise refused(host)

    def allows_address(self, address: Address) -> bool:
        target = _embedded(address)
        if _is_in(target, self.networks):
            return True
        is_routed = target.version == _IPV4 or target in _GLOBAL_UNICAST
        return is_routed and target.is_global and not target.is_multicast and not _is_in(target, _NOT_PUBLIC)

    def allowed_among(self, found: Iterable[str]) -> list[str]:
        """Return the addresses of a resolved name that may be connected to."""
        return [each for each in found if self.allows_address(ipaddress.ip_address(each.partition("%")[0]))]

    def check_file(self, path: str) -> None:
        """Check the path as written; the code that opens the file checks where symbolic links lead."""
        normal = posixpath.normpath(path)
        if not any(posixpath.commonpath([normal, folder]) == folder for folder in self._folders()):
            raise refused("file")

    def check(self, uri: str) -> None:
        """Check a URI as a user wrote it; a registry reference has no scheme."""
        parts = urlsplit(uri if "://" in uri else f"oci://{uri}")
        if parts.scheme == "file":
            self.check_file(unquote(parts.path) or "/")
        else:
            self.check_host(parts.hostname or "")

    def _folders(self) -> list[str]:
        return [posixpath.normpath(folder) for folder in self.folders if posixpath.isabs(folder)]


def refused(host: str) -> SourceNotAllowed:
    """Return the same error for existing and missing files, and for open and closed ports, to reveal nothing."""
    return SourceNotAllowed(host=host)


def is_address(host: str) -> bool:
    """Whether the host is a complete IP address; the short forms are left to the resolver."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _address(host: str) -> Address | None:
    """Parse an address like a resolver does: 127.1, 0x7f000001 and 2130706433 are addresses too."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return _legacy(host)


def _legacy(host: str) -> Address | None:
    """Parse the short forms of inet_aton: one to four numbers, decimal, octal or hexadecimal."""
    parts = host.split(".")
    numbers = [number for part in parts if (number := _number(part)) is not None]
    if len(numbers) != len(parts) or len(numbers) > _MOST_NUMBERS:
        return None
    *high, last = numbers
    value = sum(number << (24 - 8 * place) for place, number in enumerate(high)) + last
    return ipaddress.IPv4Address(value & 0xFFFFFFFF)


def _number(text: str) -> int | None:
    try:
        if text.startswith("0x"):
            return int(text, 16)
        return int(text, 8 if text.startswith("0") and len(text) > 1 else 10)
    except ValueError:
        return None


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that is embedded in an IPv6 address, otherwise the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
