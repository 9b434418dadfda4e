"""Reading a gallery from its addresses: the first that gives an index; one that failed is left alone for a while."""

import asyncio
import os
import ssl
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx2

from contracts.galleries import FreshIndex, GalleryCopy, GalleryRequest
from contracts.sources import SourceAccess
from gallery.addresses import NoName, SourceFailed, address, is_ref, named_beside
from gallery.documents import LARGEST, NotAnIndex
from gallery.index import read_index
from gallery.registry import basic

COOLDOWN_S = 600.0
_TIMEOUT_S = 120.0
_SILENCE_S = 20.0

Access = Callable[[str], Awaitable[SourceAccess | None]]


class Unreachable(Exception):
    """An address gave nothing; the message says why."""


class Fetcher:
    """Asks addresses in their order. `access` tells what an admin has set for a host."""

    def __init__(self, access: Access, *, timeout: float = _TIMEOUT_S, now: Callable[[], float] = time.time) -> None:
        self._access = access
        self._timeout = timeout
        self._now = now

    async def read(self, request: GalleryRequest, copy: GalleryCopy | None, *, patient: bool) -> FreshIndex:
        """The index from the first address that has one; what lists nothing usable does not count.

        A patient reader leaves those alone that failed a short while ago, unless there is no other.
        """
        urls = [request.url, *request.mirrors]
        cooling = copy.cooling if copy and patient else {}
        still = {url: until for url, until in cooling.items() if url in urls and until > self._now()}
        failures: dict[str, str] = {}
        for url in [url for url in urls if url not in still] or urls:
            try:
                fresh = await self._try(url, request, copy)
            except (Unreachable, NotAnIndex, NoName) as error:
                failures[url] = str(error)
                still[url] = self._now() + COOLDOWN_S
            else:
                still.pop(url, None)
                return replace(fresh, cooling=still)
        raise SourceFailed("; ".join(f"{url}: {why}" for url, why in failures.items()), still)

    async def _try(self, url: str, request: GalleryRequest, copy: GalleryCopy | None) -> FreshIndex:
        etag, content = await self._read(url, copy.etag if copy and copy.source == url else "")
        if content is not None:
            base = address(url)
            await asyncio.to_thread(read_index, content, gallery=request.name, base=base, insecure=request.insecure)
        return FreshIndex(url, etag, content, {})

    async def _read(self, url: str, etag: str) -> tuple[str, str | None]:
        try:
            async with asyncio.timeout(self._timeout):
                place = address(url)
                if not is_ref(place):
                    return await self._get(place, etag)
                return await self._follow(place, etag)
        except TimeoutError:
            raise Unreachable("no answer in time") from None

    async def _follow(self, ref: str, etag: str) -> tuple[str, str | None]:
        """The file that a `.ref` names; its name goes into the ETag, which says nothing of another file."""
        _, told = await self._get(ref, "")
        name = named_beside(told or "")
        before, _, known = etag.partition(" ")
        found, content = await self._get(urljoin(ref, name), known if before == name else "")
        return f"{name} {found}" if found else "", content

    async def _get(self, url: str, etag: str) -> tuple[str, str | None]:
        if url.startswith("file:"):
            return "", await asyncio.to_thread(_read_file, url)
        host = urlsplit(url).netloc
        access = await self._access(host) or SourceAccess(host=host)
        headers = {"If-None-Match": etag} if etag else {}
        if access.username:
            headers["Authorization"] = basic(access.username, access.password)
        try:
            async with client_for(access) as http, http.stream("GET", url, headers=headers) as response:
                if etag and response.status_code == httpx2.codes.NOT_MODIFIED:
                    return etag, None
                if response.status_code != httpx2.codes.OK:
                    raise Unreachable(f"answered {response.status_code} {response.reason_phrase}".strip())
                return response.headers.get("etag", ""), _text(await _body(response))
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error


@asynccontextmanager
async def client_for(access: SourceAccess) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that reaches the host in the way that was set for it."""
    trust = ssl.create_default_context()
    try:
        if access.ca:
            trust.load_verify_locations(cadata=access.ca)
    except ssl.SSLError as error:
        raise Unreachable(f"the certificates set for {access.host} cannot be read") from error
    async with httpx2.AsyncClient(
        verify=trust, proxy=access.proxy or None, timeout=_SILENCE_S, follow_redirects=True, max_redirects=5
    ) as http:
        yield http


async def _body(response: httpx2.Response) -> bytes:
    read = bytearray()
    async for block in response.aiter_bytes():
        read += block
        if len(read) > LARGEST:
            raise Unreachable(f"is larger than {LARGEST} bytes")
    return bytes(read)


def _read_file(url: str) -> str:
    path = Path(unquote(urlsplit(url).path))
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe would be waited for without end
                raise Unreachable("is not a regular file")
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise Unreachable(error.strerror or type(error).__name__) from error
    if len(content) > LARGEST:
        raise Unreachable(f"is larger than {LARGEST} bytes")
    return _text(content)


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreachable("is no text") from None
