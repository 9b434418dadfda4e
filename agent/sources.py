"""Where artifacts come from: a file, a web server, or the control plane itself."""

import asyncio
import email.utils
import functools
import os
import stat
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from io import FileIO
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import httpx2

from agent.failures import OperationFailed
from agent.ways import Way, Ways
from domain.operation import Reason

_BLOCK = 1024 * 1024
_CONNECT_S = 10.0
_ALWAYS = {"Accept-Encoding": "identity", "Connection": "close"}
"""one answer a connection: what a source sends beyond its own Content-Length is nobody else's answer"""
_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)


class SourceBroke(Exception):
    """The source cannot be reached, or stopped in the middle: worth asking again soon."""

    def __init__(self, message: str, reason: Reason = Reason.DOWNLOAD_FAILED) -> None:
        super().__init__(message)
        self.reason = reason
        """what it is when it does not get better"""


class SourceChanged(Exception):
    """The source has nothing at that place any more: begin again."""


@dataclass(frozen=True)
class Stream:
    """The bytes from `start` on; `total` is the size of the whole, 0 if the source does not say."""

    start: int
    total: int
    validator: str
    """changes when the content does; empty if the source gives none"""
    blocks: AsyncIterator[bytes]


class Source(Protocol):
    @property
    def uri(self) -> str: ...

    def open(self, start: int, validator: str) -> AbstractAsyncContextManager[Stream]:
        """From `start` on, if the content is still what `validator` says; else from the beginning."""
        ...


@dataclass(frozen=True)
class Timeouts:
    """In seconds: for an answer to begin, and for the next byte of it."""

    header: float
    idle: float

    def of_client(self) -> httpx2.Timeout:
        return httpx2.Timeout(self.idle, connect=min(_CONNECT_S, self.header))


class Sources:
    """Finds the source of a uri. Only the control plane ever sees this node's credential."""

    def __init__(
        self, http: httpx2.AsyncClient, url: str, bearer: Callable[[], str], ways: Ways, timeouts: Timeouts
    ) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._bearer = bearer
        self._ways = ways
        self._timeouts = timeouts

    def find(self, uri: str) -> Source:
        parts = urlsplit(uri)
        match parts.scheme:
            case "http" | "https" if parts.hostname:
                return WebSource(uri, self._ways, self._timeouts)
            case "file" if parts.path and parts.netloc in ("", "localhost"):
                return FileSource(Path(unquote(parts.path)))
            case "" if uri.startswith("/") and not parts.netloc:
                return OwnSource(self._url + uri, self._http, self._bearer, self._timeouts)
        raise OperationFailed(Reason.REFUSED_BY_NODE, f"This node cannot fetch {uri!r}.")


@dataclass(frozen=True)
class FileSource:
    path: Path

    @property
    def uri(self) -> str:
        return str(self.path)

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        """In a thread of its own: a file on a mount that hangs holds up nobody else."""
        reader = ThreadPoolExecutor(1, thread_name_prefix="file-source")
        run = functools.partial(asyncio.get_running_loop().run_in_executor, reader)
        try:
            file = await run(_open_regular, self.path)
            try:
                seen = await run(os.fstat, file.fileno())
                current = f"{seen.st_mtime_ns}-{seen.st_size}"
                start = start if validator in ("", current) and start <= seen.st_size else 0
                await run(file.seek, start)

                async def blocks() -> AsyncIterator[bytes]:
                    while block := await run(file.read, _BLOCK):
                        yield block

                yield Stream(start, seen.st_size, current, blocks())
            finally:
                run(file.close)  # after what it still reads
        finally:
            reader.shutdown(wait=False)


def _open_regular(path: Path) -> FileIO:
    """Never a pipe or a device: one that nobody writes to would be waited for without end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OperationFailed(Reason.DOWNLOAD_FAILED, f"{path}: {error.strerror}") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return FileIO(descriptor, "rb")
    os.close(descriptor)
    raise OperationFailed(Reason.DOWNLOAD_FAILED, f"{path} is not a regular file.")


@dataclass(frozen=True)
class OwnSource:
    """The control plane: it gets this node's credential, and no redirect of it is followed."""

    uri: str
    http: httpx2.AsyncClient
    bearer: Callable[[], str]
    timeouts: Timeouts

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        headers = {"Authorization": f"Bearer {self.bearer()}"} | ranged(start, validator)
        async with answer(self.http, self.uri, headers, self.timeouts, follow_redirects=False) as response:
            check(response, start)
            yield stream_of(response)


@dataclass(frozen=True)
class WebSource:
    uri: str
    ways: Ways
    timeouts: Timeouts

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        async with (
            self.ways.to(urlsplit(self.uri).netloc.rpartition("@")[2]) as way,
            self._answer(way, ranged(start, validator)) as response,
        ):
            check(response, start)
            yield stream_of(response)

    def _answer(self, way: Way, headers: dict[str, str]) -> AbstractAsyncContextManager[httpx2.Response]:
        return answer(way.http, self.uri, way.headers | headers, self.timeouts, follow_redirects=True)


@asynccontextmanager
async def answer(
    http: httpx2.AsyncClient, url: str, headers: dict[str, str], timeouts: Timeouts, *, follow_redirects: bool
) -> AsyncIterator[httpx2.Response]:
    """The answer once its header is there; what goes wrong with the link is `SourceBroke`."""
    headers = _ALWAYS | headers
    try:
        async with AsyncExitStack() as stack:
            asking = http.stream(
                "GET", url, headers=headers, timeout=timeouts.of_client(), follow_redirects=follow_redirects
            )
            async with asyncio.timeout(timeouts.header):
                response = await stack.enter_async_context(asking)
            yield response
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects) as error:
        raise OperationFailed(Reason.DOWNLOAD_FAILED, f"{shown(url)}: {error}") from error
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
        raise SourceBroke(f"{shown(url)}: {_named(error)}", Reason.SOURCE_DOWN) from error
    except (httpx2.TransportError, TimeoutError) as error:
        raise SourceBroke(f"{shown(url)}: {_named(error)}") from error


def shown(url: str) -> str:
    """Without user, password and query: they may be secrets, and errors are read by many."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def ranged(start: int, validator: str) -> dict[str, str]:
    if start == 0:
        return {}
    wanted = {"Range": f"bytes={start}-"}
    return wanted | {"If-Range": validator} if validator else wanted


def check(response: httpx2.Response, start: int) -> None:
    """Say what an answer without content means."""
    status = response.status_code
    if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        return
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start > 0:
        raise SourceChanged
    words = f"{shown(str(response.url))} answered {status} {response.reason_phrase}".rstrip()
    raise failure_of(status, words, response.headers.get("Retry-After", ""))


def failure_of(status: int, words: str, retry_after: str = "") -> OperationFailed:
    """What a status means for the operation."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return OperationFailed(Reason.SOURCE_DOWN, words, retry_after_s=_seconds(retry_after))
    return OperationFailed(Reason.SOURCE_DENIED if status in _DENIED else Reason.DOWNLOAD_FAILED, words)


def stream_of(response: httpx2.Response) -> Stream:
    length = int(response.headers.get("Content-Length", 0))
    start = 0
    if response.status_code == HTTPStatus.PARTIAL_CONTENT:
        start, length = _content_range(response.headers.get("Content-Range", ""))
    validator = response.headers.get("ETag", "")
    strong = "" if validator.startswith("W/") else validator
    return Stream(start, length, strong, response.aiter_raw())


def _content_range(header: str) -> tuple[int, int]:
    """`bytes 100-199/200` -> (100, 200)."""
    try:
        place, total = header.removeprefix("bytes ").split("/")
        return int(place.split("-")[0]), int(total) if total != "*" else 0
    except ValueError as error:
        raise OperationFailed(Reason.DOWNLOAD_FAILED, f"The source sent the range {header!r}.") from error


def _seconds(retry_after: str) -> float | None:
    """Seconds or a date."""
    if retry_after.isdigit():
        return float(retry_after)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max((aware - datetime.now(UTC)).total_seconds(), 0.0)


def _named(error: Exception) -> str:
    return str(error) or type(error).__name__
