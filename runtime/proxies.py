"""Proxies of the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY): for other machines, never for this one."""

import ipaddress
import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx2
import structlog

log = structlog.stdlib.get_logger(__name__)

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def is_loopback(url: str) -> bool:
    """Whether that address is on this machine, whatever a name server says."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def api_client(url: str, *, verify: ssl.SSLContext | bool, **options: Any) -> httpx2.AsyncClient:
    """A client of the API and of others: this machine is reached directly, the rest as the environment says.

    An environment that names a proxy that cannot be used (SOCKS without its library) is told, and not followed.
    """
    try:
        return httpx2.AsyncClient(base_url=url, verify=verify, mounts=_direct(url), **options)
    except (ImportError, ValueError) as error:
        log.warning("proxy.unusable", error=str(error), meaning="proxies of the environment are not used")
        return httpx2.AsyncClient(base_url=url, verify=verify, trust_env=False, **options)


def _direct(url: str) -> dict[str, None]:
    """Hosts that are reached without a proxy: a transport of None is the client's own."""
    own = [urlsplit(url).hostname or ""] if is_loopback(url) else []
    return {f"all://{host}": None for host in {*_LOOPBACK, *(f"[{host}]" if ":" in host else host for host in own)}}
