"""Sources of artifacts: a file, a web server, or the control plane."""

import asyncio
import functools
import os
import stat
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from io import FileIO
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import httpx2
import structlog

from nodesmith.agent.fetch.host_access import HostAccess, HostClient
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.domain.addresses import without_query
from nodesmith.domain.errors import SourceNotAllowed
from nodesmith.domain.operation import Reason
from nodesmith.domain.source_policy import SourcePolicy
from nodesmith.runtime.retry_after import retry_after_s

log = structlog.stdlib.get_logger(__name__)

_BLOCK = 1024 * 1024
_CONNECT_S = 10.0
_REQUEST_HEADERS = {"Accept-Encoding": "identity", "Connection": "close"}
"""one response per connection, so that surplus bytes cannot be read as the next response"""
_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)


class SourceBroke(Exception):
    """The source is unreachable or closed the connection early; retry soon."""

    def __init__(self, message: str, reason: Reason = Reason.DOWNLOAD_FAILED) -> None:
        super().__init__(message)
        self.reason = reason
        """the reason to report if retries do not help"""


class SourceChanged(Exception):
    """The source's content changed; begin again."""


@dataclass(frozen=True)
class Stream:
    """The bytes from `start` on; `total` is the full size, 0 if the source does not report it."""

    start: int
    total: int
    validator: str
    """changes with the content; empty if the source sends none"""
    blocks: AsyncIterator[bytes]


class Source(Protocol):
    @property
    def uri(self) -> str: ...

    def open(self, start: int, validator: str) -> AbstractAsyncContextManager[Stream]:
        """Stream from `start` if `validator` still matches the content, else from the beginning."""
        ...


@dataclass(frozen=True)
class Timeouts:
    """Seconds to wait for the response header and for each next byte."""

    header: float
    idle: float

    def of_client(self) -> httpx2.Timeout:
        return httpx2.Timeout(self.idle, connect=min(_CONNECT_S, self.header))


class Sources:
    """Finds the source of a uri. Only the control plane receives this node's credential."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        url: str,
        bearer: Callable[[], str],
        hosts: HostAccess,
        timeouts: Timeouts,
        *,
        policy: SourcePolicy,
    ) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._bearer = bearer
        self._hosts = hosts
        self._timeouts = timeouts
        self._policy = policy

    def find(self, uri: str) -> Source:
        parts = urlsplit(uri)
        match parts.scheme:
            case "http" | "https" if parts.hostname:
                return WebSource(uri, self._hosts, self._timeouts)
            case "file" if parts.path and parts.netloc in ("", "localhost"):
                return FileSource(Path(unquote(parts.path)), self._policy)
            case "" if uri.startswith("/") and not parts.netloc:
                return ControlPlaneSource(self._url + uri, self._http, self._bearer, self._timeouts)
        raise OperationFailed(Reason.REFUSED_BY_NODE, f"This node cannot fetch {without_query(uri)!r}.")


@dataclass(frozen=True)
class FileSource:
    path: Path
    policy: SourcePolicy

    @property
    def uri(self) -> str:
        return str(self.path)

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        """Read in a dedicated thread, so that a hanging mount blocks no other job."""
        reader = ThreadPoolExecutor(1, thread_name_prefix="file-source")
        run = functools.partial(asyncio.get_running_loop().run_in_executor, reader)
        try:
            file = await run(_open_regular, self.path, self.policy)
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
                run(file.close)  # queued after pending reads
        finally:
            reader.shutdown(wait=False)


def _open_regular(path: Path, policy: SourcePolicy) -> FileIO:
    """Open only a regular file, because reading a pipe or device could block forever."""
    try:
        policy.check_file(str(path))
        policy.check_file(str(path := path.resolve()))
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except SourceNotAllowed as error:
        message = f"This node may not read that file: {error.message} See NODESMITH_AGENT_SOURCE_FOLDERS."
        raise OperationFailed(Reason.REFUSED_BY_NODE, message) from error
    except OSError as error:
        raise _unreadable(path, error.strerror or type(error).__name__) from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return FileIO(descriptor, "rb")
    os.close(descriptor)
    raise _unreadable(path, "not a regular file")


def _unreadable(path: Path, why: str) -> OperationFailed:
    """Return the same message for every cause, so that it does not reveal which files exist on this node."""
    log.warning("source.unreadable", path=str(path), why=why)
    return OperationFailed(
        Reason.DOWNLOAD_FAILED, f"This node cannot read {path} as a regular file. The agent's log has the cause."
    )


@dataclass(frozen=True)
class ControlPlaneSource:
    """The control plane: receives this node's credential; redirects are not followed."""

    uri: str
    http: httpx2.AsyncClient
    bearer: Callable[[], str]
    timeouts: Timeouts

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        headers = {"Authorization": f"Bearer {self.bearer()}"} | range_headers(start, validator)
        async with open_response(self.http, self.uri, headers, self.timeouts, follow_redirects=False) as response:
            check_status(response, start)
            yield stream_of(response)


@dataclass(frozen=True)
class WebSource:
    uri: str
    hosts: HostAccess
    timeouts: Timeouts

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        async with (
            self.hosts.to(urlsplit(self.uri).netloc.rpartition("@")[2]) as client,
            self._open_response(client, range_headers(start, validator)) as response,
        ):
            check_status(response, start)
            yield stream_of(response)

    def _open_response(
        self, client: HostClient, headers: dict[str, str]
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        return open_response(client.http, self.uri, client.headers | headers, self.timeouts, follow_redirects=True)


@asynccontextmanager
async def open_response(
    http: httpx2.AsyncClient, url: str, headers: dict[str, str], timeouts: Timeouts, *, follow_redirects: bool
) -> AsyncIterator[httpx2.Response]:
    """Yield the response once its header arrived; connection errors raise `SourceBroke`."""
    headers = _REQUEST_HEADERS | headers
    try:
        async with AsyncExitStack() as stack:
            asking = http.stream(
                "GET", url, headers=headers, timeout=timeouts.of_client(), follow_redirects=follow_redirects
            )
            async with asyncio.timeout(timeouts.header):
                response = await stack.enter_async_context(asking)
            yield response
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects) as error:
        raise OperationFailed(Reason.DOWNLOAD_FAILED, f"{redacted(url)}: {error}") from error
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
        raise SourceBroke(f"{redacted(url)}: {_error_text(error)}", Reason.SOURCE_DOWN) from error
    except (httpx2.TransportError, TimeoutError) as error:
        raise SourceBroke(f"{redacted(url)}: {_error_text(error)}") from error


def redacted(url: str) -> str:
    """Remove user, password and query, which may be secrets, from a url in error messages."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def range_headers(start: int, validator: str) -> dict[str, str]:
    if start == 0:
        return {}
    wanted = {"Range": f"bytes={start}-"}
    return wanted | {"If-Range": validator} if validator else wanted


def check_status(response: httpx2.Response, start: int) -> None:
    """Raise for a response without content."""
    status = response.status_code
    if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        return
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start > 0:
        raise SourceChanged
    message = f"{redacted(str(response.url))} answered {status} {response.reason_phrase}".rstrip()
    raise failure_of(status, message, response.headers.get("Retry-After", ""))


def failure_of(status: int, message: str, retry_after: str = "") -> OperationFailed:
    """Map an HTTP status to a failure of the operation."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return OperationFailed(Reason.SOURCE_DOWN, message, retry_after_s=retry_after_s(retry_after))
    return OperationFailed(Reason.SOURCE_DENIED if status in _DENIED else Reason.DOWNLOAD_FAILED, message)


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


def _error_text(error: Exception) -> str:
    return str(error) or type(error).__name__
