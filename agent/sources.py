"""Where artifacts come from: a file, a web server, or the control plane itself."""

import asyncio
import email.utils
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import httpx2

from agent.failures import OperationFailed
from domain.operation import Reason

_BLOCK = 1024 * 1024
_CONNECT_S = 10.0


class SourceBroke(Exception):
    """The source cannot be reached, or stopped in the middle: worth asking again soon."""


@dataclass(frozen=True)
class Stream:
    """The bytes from `start` on; `total` is the size of the whole, 0 if the source does not say."""

    start: int
    total: int
    validator: str
    """changes when the content does; empty if the source gives none"""
    blocks: AsyncIterator[bytes]


class Source(Protocol):
    def open(self, start: int, validator: str) -> AbstractAsyncContextManager[Stream]:
        """From `start` on, if the content is still what `validator` says; else from the beginning."""
        ...


class Sources:
    """Finds the source of a uri. Only the control plane ever sees this node's credential."""

    def __init__(self, http: httpx2.AsyncClient, url: str, bearer: Callable[[], str], *, idle_timeout: float) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._bearer = bearer
        self._timeout = httpx2.Timeout(idle_timeout, connect=min(_CONNECT_S, idle_timeout))

    def find(self, uri: str) -> Source:
        parts = urlsplit(uri)
        match parts.scheme:
            case "http" | "https" if parts.hostname:
                return WebSource(self._http, uri, {}, self._timeout, follow_redirects=True)
            case "file" if parts.path and parts.netloc in ("", "localhost"):
                return FileSource(Path(unquote(parts.path)))
            case "" if uri.startswith("/") and not parts.netloc:
                credential = {"Authorization": f"Bearer {self._bearer()}"}
                return WebSource(self._http, self._url + uri, credential, self._timeout, follow_redirects=False)
        raise OperationFailed(Reason.REFUSED_BY_NODE, f"This node cannot fetch {uri!r}.")


@dataclass(frozen=True)
class FileSource:
    path: Path

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        try:
            file = await asyncio.to_thread(self.path.open, "rb")
        except OSError as error:
            raise OperationFailed(Reason.DOWNLOAD_FAILED, f"{self.path}: {error.strerror}") from error
        with file:
            seen = await asyncio.to_thread(self.path.stat)
            current = f"{seen.st_mtime_ns}-{seen.st_size}"
            start = start if validator in ("", current) and start <= seen.st_size else 0
            file.seek(start)

            async def blocks() -> AsyncIterator[bytes]:
                while block := await asyncio.to_thread(file.read, _BLOCK):
                    yield block

            yield Stream(start, seen.st_size, current, blocks())


@dataclass(frozen=True)
class WebSource:
    http: httpx2.AsyncClient
    url: str
    headers: dict[str, str]
    timeout: httpx2.Timeout
    follow_redirects: bool

    @asynccontextmanager
    async def open(self, start: int, validator: str) -> AsyncIterator[Stream]:
        headers = self.headers | {"Accept-Encoding": "identity"} | _range(start, validator)
        try:
            async with self.http.stream(
                "GET", self.url, headers=headers, timeout=self.timeout, follow_redirects=self.follow_redirects
            ) as response:
                _check(response, start)
                yield _stream(response)
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects) as error:
            raise OperationFailed(Reason.DOWNLOAD_FAILED, f"{shown(self.url)}: {error}") from error
        except httpx2.TransportError as error:
            raise SourceBroke(f"{shown(self.url)}: {str(error) or type(error).__name__}") from error


def shown(url: str) -> str:
    """Without user, password and query: they may be secrets, and errors are read by many."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def _range(start: int, validator: str) -> dict[str, str]:
    if start == 0:
        return {}
    wanted = {"Range": f"bytes={start}-"}
    return wanted | {"If-Range": validator} if validator else wanted


def _check(response: httpx2.Response, start: int) -> None:
    status = response.status_code
    if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        return
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start > 0:
        raise SourceChanged
    words = f"{shown(str(response.url))} answered {status} {response.reason_phrase}".rstrip()
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        raise OperationFailed(Reason.SOURCE_DOWN, words, retry_after_s=_retry_after(response))
    raise OperationFailed(Reason.DOWNLOAD_FAILED, words)


class SourceChanged(Exception):
    """The source has nothing at that place any more: begin again."""


def _stream(response: httpx2.Response) -> Stream:
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


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds or a date."""
    header = response.headers.get("Retry-After", "")
    if header.isdigit():
        return float(header)
    try:
        moment = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max((aware - datetime.now(UTC)).total_seconds(), 0.0)
