"""Proxies from the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY), but never for this machine."""

import ipaddress
import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx2
import structlog

log = structlog.stdlib.get_logger(__name__)

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def is_loopback(url: str) -> bool:
    """Whether the address is on this machine, without asking a name server."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def api_client(url: str, *, verify: ssl.SSLContext | bool, **options: Any) -> httpx2.AsyncClient:
    """Create an HTTP client that reaches this machine directly and other hosts through the proxies of the environment.

    An unusable proxy (SOCKS without its library) is logged, and no proxy is used.
    """
    try:
        return httpx2.AsyncClient(base_url=url, verify=verify, mounts=_direct(url), **options)
    except (ImportError, ValueError) as error:
        log.warning("proxy.unusable", error=str(error), meaning="proxies of the environment are not used")
        return httpx2.AsyncClient(base_url=url, verify=verify, trust_env=False, **options)


def _direct(url: str) -> dict[str, None]:
    """Return the mounts of hosts that bypass the proxy; a transport of None is the client's default."""
    own = [urlsplit(url).hostname or ""] if is_loopback(url) else []
    return {f"all://{host}": None for host in {*_LOOPBACK, *(f"[{host}]" if ":" in host else host for host in own)}}
