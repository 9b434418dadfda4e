"""Client addresses: group them for the limits, and recognise trusted proxies."""

import ipaddress
from collections.abc import Callable

from nodesmith.domain.errors import InvalidRequest

_IPV6_NETWORK = 64
"""prefix length of one IPv6 subscriber, who can choose among 2**64 addresses"""


def network(address: str) -> str:
    """Return the key that limits count by: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))


def proxies(trusted: str) -> Callable[[str], bool]:
    """Return a test for trusted proxies: addresses or networks, separated by commas; * is all, empty is none."""
    named = [part.strip() for part in trusted.split(",") if part.strip()]
    if "*" in named:
        return lambda _address: True
    try:
        networks = [ipaddress.ip_network(part, strict=False) for part in named]
    except ValueError as error:
        raise InvalidRequest(f"NODESMITH_TRUSTED_PROXIES  must list addresses or networks: {error}.") from error

    def is_proxy(address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in networks)

    return is_proxy
