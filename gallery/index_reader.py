"""Reads a gallery from the first of its addresses that works; an address that failed is skipped for a while."""

import asyncio
import os
import ssl
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urljoin, urlsplit

import httpx2

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.domain.errors import SourceNotAllowed
from nodesmith.domain.gallery import FreshIndex, GalleryCopy, GallerySettings, IndexProof
from nodesmith.domain.source_policy import SourcePolicy
from nodesmith.gallery.addresses import NoName, SourceFailed, address, is_ref, named_beside
from nodesmith.gallery.index import read_index
from nodesmith.gallery.registry import basic
from nodesmith.gallery.signed_index import FOLDER as METADATA
from nodesmith.gallery.signed_index import LARGEST as METADATA_LIMIT
from nodesmith.gallery.signed_index import IndexRefused, check, verify
from nodesmith.gallery.source_http import UnusableBody, read_body, source_client
from nodesmith.gallery.yaml_documents import LARGEST, NotAnIndex

COOLDOWN_S = 600.0
_TIMEOUT_S = 120.0
_SILENCE_S = 20.0
_LARGEST_REF = 4096

Access = Callable[[str], Awaitable[SourceAccess | None]]


class Unreachable(Exception):
    """An address could not be read; the message says why."""


class NotThere(Unreachable):
    """The file does not exist."""


@dataclass(frozen=True)
class _Page:
    """The response of one address; without content, the ETag still matches."""

    etag: str
    content: bytes | None


class IndexReader:
    """Reads addresses in order. `access` returns an admin's settings for a host."""

    def __init__(
        self,
        access: Access,
        policy: SourcePolicy,
        *,
        timeout: float = _TIMEOUT_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._access = access
        self._policy = policy
        self._timeout = timeout
        self._now = now

    async def read(self, settings: GallerySettings, copy: GalleryCopy | None, *, patient: bool) -> FreshIndex:
        """Return the index from the first address that has a usable one.

        `patient`: skip addresses that failed recently, unless there is no other.
        """
        urls = [settings.url, *settings.mirrors]
        cooling = copy.cooling if copy and patient else {}
        still = {url: until for url, until in cooling.items() if url in urls and until > self._now()}
        failures: dict[str, str] = {}
        for url in [url for url in urls if url not in still] or urls:
            try:
                fresh = await self._try(url, settings, copy)
            except (Unreachable, NotAnIndex, NoName, IndexRefused, SourceNotAllowed) as error:
                failures[url] = str(error)
                still[url] = self._now() + COOLDOWN_S
            else:
                still.pop(url, None)
                return replace(fresh, cooling=still)
        raise SourceFailed("; ".join(f"{url}: {why}" for url, why in failures.items()), still)

    async def small(self, url: str, largest: int) -> bytes | None:
        """Read a small file as a whole; None if it does not exist."""
        try:
            async with asyncio.timeout(self._timeout):
                return (await self._get(url, largest=largest)).content
        except NotThere:
            return None
        except TimeoutError:
            raise Unreachable("no answer in time") from None

    async def _try(self, url: str, settings: GallerySettings, copy: GalleryCopy | None) -> FreshIndex:
        try:
            async with asyncio.timeout(self._timeout):
                fresh = await (self._signed if settings.root else self._plain)(url, settings, copy)
        except TimeoutError:
            raise Unreachable("no answer in time") from None
        if fresh.content is not None:
            await asyncio.to_thread(read_index, fresh.content, settings.name, address(url), settings.trusted())
        return fresh

    async def _plain(self, url: str, _: GallerySettings, copy: GalleryCopy | None) -> FreshIndex:
        place, etag = address(url), copy.etag if copy and copy.source == url else ""
        page = await (self._follow(place, etag) if is_ref(place) else self._get(place, etag))
        return FreshIndex(url, page.etag, None if page.content is None else _text(page.content), {})

    async def _signed(self, url: str, settings: GallerySettings, copy: GalleryCopy | None) -> FreshIndex:
        """Read only what the signed metadata lists; an identical copy is kept."""
        place = await self._named(address(url)) if is_ref(address(url)) else address(url)
        loop, known = asyncio.get_running_loop(), copy.metadata if copy else {}

        def download(document: str) -> bytes | None:
            return asyncio.run_coroutine_threadsafe(self.small(document, METADATA_LIMIT), loop).result()

        name, base = PurePosixPath(urlsplit(place).path).name, urljoin(place, METADATA)
        proof = await _in_thread(partial(verify, name, base, settings.root, known, download))
        if copy and sha256(copy.content.encode()).hexdigest() == proof.sha256:
            return FreshIndex(url, "", None, {}, proof)
        content = (await self._get(place, largest=proof.length)).content or b""
        check(proof, content)
        return FreshIndex(url, "", _text(content), {}, proof)

    async def _follow(self, ref: str, etag: str) -> _Page:
        """Read the file that a `.ref` names; the ETag includes that name, as it is valid for one file only."""
        place = await self._named(ref)
        name = place.rpartition("/")[2]
        before, _, known = etag.partition(" ")
        page = await self._get(place, known if before == name else "")
        return replace(page, etag=f"{name} {page.etag}" if page.etag else "")

    async def _named(self, ref: str) -> str:
        pointer = (await self._get(ref, largest=_LARGEST_REF)).content or b""
        return urljoin(ref, named_beside(_text(pointer)))

    async def _get(self, url: str, etag: str = "", largest: int | None = None) -> _Page:
        largest = LARGEST if largest is None else largest
        if url.startswith("file:"):
            return _Page("", await asyncio.to_thread(_read_file, url, self._policy, largest))
        host = urlsplit(url).netloc
        access = await self._access(host) or SourceAccess(host=host)
        headers = {"If-None-Match": etag} if etag else {}
        if access.username:
            headers["Authorization"] = basic(access.username, access.password)
        try:
            async with (
                client_for(access, self._policy) as http,
                http.stream("GET", url, headers=headers, follow_redirects=True) as response,
            ):
                if etag and response.status_code == httpx2.codes.NOT_MODIFIED:
                    return _Page(etag, None)
                _check_status(response)
                return _Page(response.headers.get("etag", ""), await _body(response, largest))
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error


@asynccontextmanager
async def client_for(access: SourceAccess, policy: SourcePolicy) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with the settings for that host."""
    trust = ssl.create_default_context()
    try:
        if access.ca:
            trust.load_verify_locations(cadata=access.ca)
    except ssl.SSLError as error:
        raise Unreachable(f"the certificates set for {access.host} cannot be read") from error
    async with source_client(policy, verify=trust, proxy=access.proxy, timeout=_SILENCE_S) as http:
        yield http


async def _in_thread(verifying: Callable[[], IndexProof]) -> IndexProof:
    """Run in a separate thread: it waits for downloads that need threads of the shared pool."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="signed-index")
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, verifying)
    finally:
        thread.shutdown(wait=False)


def _check_status(response: httpx2.Response) -> None:
    answered = f"answered {response.status_code} {response.reason_phrase}".strip()
    if response.status_code in (httpx2.codes.NOT_FOUND, httpx2.codes.GONE, httpx2.codes.FORBIDDEN):
        raise NotThere(answered)  # object stores respond 403 for missing files
    if response.status_code != httpx2.codes.OK:
        raise Unreachable(answered)


async def _body(response: httpx2.Response, largest: int) -> bytes:
    try:
        return await read_body(response, largest)
    except UnusableBody as error:
        raise Unreachable(str(error)) from error


def _read_file(url: str, policy: SourcePolicy, largest: int) -> bytes:
    policy.check(url)
    path = Path(unquote(urlsplit(url).path)).resolve()
    policy.check_file(str(path))
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # reading a pipe could block for ever
                raise Unreachable("is not a regular file")
            content = file.read(largest + 1)
    except FileNotFoundError as error:
        raise NotThere("No such file or directory") from error
    except OSError as error:
        raise Unreachable(error.strerror or type(error).__name__) from error
    if len(content) > largest:
        raise Unreachable(f"is larger than {largest} bytes")
    return content


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreachable("is not text") from None
