"""HTTP access to sources: only hosts that the policy allows, and only at the address that was checked.

All requests pass here, including redirects and requests for a registry's token.
"""

import asyncio
import socket
import ssl
import urllib.request

import httpx2
import structlog

from nodesmith.domain.source_policy import SourcePolicy, is_address, refused

log = structlog.stdlib.get_logger(__name__)

_LOCAL = ("127.0.0.1", "localhost", "::1")
_ONE_ANSWER = httpx2.Limits(max_keepalive_connections=0)
"""no keep-alive: connections are pooled by address, so one could serve another name of that address"""
_PORTS = {"http": 80, "https": 443}
_ACCEPTED = {"Accept-Encoding": "gzip"}
_ENCODINGS = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
"""what is decoded. Empty zstd frames take two seconds for each megabyte and give no bytes that a limit could count."""


class UnusableBody(Exception):
    """The body of a response is too large, or encoded in a way that was not asked for; the text completes "it ..."."""


def source_client(
    policy: SourcePolicy, *, verify: ssl.SSLContext | bool = True, proxy: str = "", timeout: float = 5.0
) -> httpx2.AsyncClient:
    """A client that reaches only what the policy allows."""
    transport = SourceTransport(policy, verify=verify, proxy=proxy)
    return httpx2.AsyncClient(transport=transport, timeout=timeout, max_redirects=5, headers=_ACCEPTED)


async def read_body(response: httpx2.Response, largest: int) -> bytes:
    """Read a small body as a whole; raises `UnusableBody`."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise UnusableBody(f"is encoded as {encoding[:40]!r}, which was not asked for")
    read = bytearray()
    async for block in response.aiter_bytes():
        read += block
        if len(read) > largest:
            raise UnusableBody(f"is larger than {largest} bytes")
    return bytes(read)


class SourceTransport(httpx2.AsyncBaseTransport):
    """Resolves a name, checks its addresses, and connects to one of them, so that DNS rebinding has no effect.

    With a proxy, the proxy resolves: then the host is checked as written.
    """

    def __init__(self, policy: SourcePolicy, *, verify: ssl.SSLContext | bool, proxy: str) -> None:
        self._policy = policy
        self._verify = verify
        self._proxy = proxy
        self._direct = httpx2.AsyncHTTPTransport(verify=verify, limits=_ONE_ANSWER, trust_env=False)
        self._through: dict[str, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raise `SourceNotAllowed` before any connection is opened."""
        self._policy.check_host(request.url.host)
        proxied = self._proxied(request.url)
        if proxied is not None:
            return await proxied.handle_async_request(request)
        failure: httpx2.ConnectError | None = None
        for address in await self._addresses(request.url):
            try:
                return await self._direct.handle_async_request(_at(request, address))
            except httpx2.ConnectError as error:
                failure = error
        raise failure or refused(request.url.host)

    async def aclose(self) -> None:
        for transport in (self._direct, *self._through.values()):
            await transport.aclose()

    async def _addresses(self, url: httpx2.URL) -> list[str]:
        port = url.port or _PORTS[url.scheme]
        if is_address(url.host):
            return [url.host]  # already checked
        try:
            found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"{url.host}: {error}") from error
        return self._policy.allowed_among(dict.fromkeys(str(address[0]) for *_, address in found))

    def _proxied(self, url: httpx2.URL) -> httpx2.AsyncHTTPTransport | None:
        proxy = self._proxy or _proxy_of_environment(url)
        if not proxy:
            return None
        if proxy not in self._through:
            try:
                self._through[proxy] = httpx2.AsyncHTTPTransport(
                    verify=self._verify, limits=_ONE_ANSWER, trust_env=False, proxy=proxy
                )
            except (ImportError, ValueError) as error:
                log.warning("proxy.unusable", error=str(error), meaning="proxies of the environment are not used")
                return None
        return self._through[proxy]


def _proxy_of_environment(url: httpx2.URL) -> str:
    """Proxies apply to other machines, never to this one."""
    if url.host in _LOCAL or urllib.request.proxy_bypass(url.host):
        return ""
    proxies = urllib.request.getproxies()
    return proxies.get(url.scheme) or proxies.get("all", "")


def _at(request: httpx2.Request, address: str) -> httpx2.Request:
    """Redirect the request to that address; the Host header and the certificate check keep the host name."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )
