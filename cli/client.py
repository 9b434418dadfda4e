"""The HTTP client of the command line; it turns every failure into a sentence and a remedy."""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import httpx2
from pydantic import BaseModel, ValidationError

from nodesmith.cli.errors import UNREACHABLE, CommandFailed
from nodesmith.contracts.http.shared import Problem
from nodesmith.runtime.proxies import is_loopback
from nodesmith.runtime.retry_after import retry_after_s
from nodesmith.runtime.tls_trust import trusting

Shape = TypeVar("Shape", bound=BaseModel)

QueryValue = str | int | bool | list[str] | None
"""a query parameter; a list repeats the name"""

_TIMEOUT = httpx2.Timeout(35.0, connect=5.0)
_UPLOAD_TIMEOUT = httpx2.Timeout(120.0, connect=5.0)
_STREAM_TIMEOUT = httpx2.Timeout(40.0, connect=5.0)
"""the API sends a comment every 15 s: a longer silence means a dead connection"""


LONGEST_RETRY_AFTER_S = 60.0
"""upper limit, because a user waits for the command"""
COMMENT = ":"
"""event name of a comment, which the API sends as a keep-alive"""


@dataclass(frozen=True)
class ServerSentEvent:
    """One event of the stream; progress ticks have no id."""

    event: str
    data: Any
    id: str = ""


class ApiClient:
    """Client of one API with one token. Every method raises `CommandFailed` when the API fails or refuses."""

    def __init__(
        self, url: str, token: str, ca_file: Path | None = None, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.url = url.rstrip("/")
        self._pause = pause
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        trusted = trusting(ca_file) if self.url.startswith("https:") else True
        self._http = httpx2.Client(
            base_url=self.url,
            headers=headers,
            timeout=_TIMEOUT,
            verify=trusted,
            trust_env=not is_loopback(self.url),  # no proxy for this machine's own API
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: QueryValue) -> Any:
        return self._send("GET", path, params=_without_none(query))

    def post(self, path: str, body: BaseModel | None = None, **query: str | None) -> Any:
        return self._send("POST", path, json=_json_body(body), params=_without_none(query))

    def patch(self, path: str, values: Mapping[str, str], **query: str | None) -> Any:
        return self._send("PATCH", path, json=dict(values), params=_without_none(query))

    def put(self, path: str, body: BaseModel, **query: str | None) -> Any:
        return self._send("PUT", path, json=_json_body(body), params=_without_none(query))

    def upload(self, path: str, file: BinaryIO, **query: QueryValue) -> Any:
        """Stream a file to the API; only a stalled transfer times out."""
        return self._send("PUT", path, content=file, params=_without_none(query), timeout=_UPLOAD_TIMEOUT)

    def delete(self, path: str, **query: str | None) -> Any:
        return self._send("DELETE", path, params=_without_none(query))

    def post_once(self, path: str, body: BaseModel) -> Any:
        """Post, and retry once if the answer was lost; the idempotency key makes the retry safe."""
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        try:
            return self._send("POST", path, json=_json_body(body), headers=headers)
        except CommandFailed as failure:
            if not failure.is_retryable:
                raise
            self._pause(failure.retry_after_s)
        return self._send("POST", path, json=_json_body(body), headers=headers)

    @contextmanager
    def events(self, path: str, *, last_event_id: str = "", **query: str) -> Iterator[Iterator[ServerSentEvent]]:
        """Open an event stream; `httpx2.TransportError` is raised when it breaks."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_event_id} if last_event_id else {})
        with self._http.stream("GET", path, params=query, headers=headers, timeout=_STREAM_TIMEOUT) as response:
            if response.is_error:
                response.read()
                raise failure_from_response(response)
            yield parse_events(response.iter_lines())

    def _send(self, method: str, path: str, **parts: Any) -> Any:
        try:
            response = self._http.request(method, path, **parts)
        except httpx2.TransportError as error:
            raise failure_from_transport(self.url, error) from error
        if response.is_error:
            raise failure_from_response(response)
        return response.json() if response.content else None


def segment(name: str) -> str:
    """Quote one path segment: a name may contain a slash or a space."""
    return quote(name, safe="")


def _without_none(query: Mapping[str, QueryValue]) -> dict[str, QueryValue]:
    return {name: value for name, value in query.items() if value is not None}


def _json_body(body: BaseModel | None) -> Any:
    return body.model_dump(mode="json", exclude_defaults=True) if body else None


def parse_events(lines: Iterator[str]) -> Iterator[ServerSentEvent]:
    """Parse the event stream: an empty line ends an event; a comment is an event of its own."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name:
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
        elif line:
            yield ServerSentEvent(COMMENT, value.strip())
        else:
            if "data" in fields:
                yield ServerSentEvent(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id", ""))
            fields = {}


def failure_from_response(response: httpx2.Response) -> CommandFailed:
    """Convert an error response; the API sends problem+json, a proxy in front of it may not."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return CommandFailed(
            f"The API answered {response.status_code} {response.reason_phrase} without a reason.",
            "Check the address: `--url` or NODESMITH_URL.",
            code="not_a_problem",
            **_retry_advice(response),
        )
    return CommandFailed(problem.detail, problem.remedy, code=problem.code, **_retry_advice(response))


def _retry_advice(response: httpx2.Response) -> dict[str, Any]:
    """Return whether a retry may succeed, and how long the API asks the client to wait before it."""
    is_throttled = response.status_code == HTTPStatus.TOO_MANY_REQUESTS
    requested = retry_after_s(response.headers.get("Retry-After", "")) or 0.0
    is_retryable = response.is_server_error or is_throttled
    return {"is_retryable": is_retryable, "retry_after_s": min(requested, LONGEST_RETRY_AFTER_S)}


def failure_from_transport(url: str, error: httpx2.TransportError) -> CommandFailed:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        sentence, remedy = f"Nothing answers at {url}.", _start_remedy(url)
    else:
        sentence = f"The connection to {url} broke ({type(error).__name__})."
        remedy = "Accepted operations are not lost: `nodesmith ops ls` lists them."
    return CommandFailed(sentence, remedy, code="unreachable", exit_code=UNREACHABLE, is_retryable=True)


def _start_remedy(url: str) -> str:
    remedy = "Start Nodesmith with `nodesmith up` (or `make run`)."
    if is_loopback(url) or not getproxies():
        return remedy
    return f"{remedy} The environment sets a proxy; NO_PROXY={urlsplit(url).hostname} bypasses it."


def read(shape: type[Shape], answer: Any) -> Shape:
    """Parse an answer; a mismatch means that another program or version listens at that address."""
    try:
        return shape.model_validate(answer)
    except ValidationError as error:
        raise CommandFailed(
            f"The API's answer is not a {shape.__name__}.",
            "Check that the address belongs to a Nodesmith API of this version.",
            code="unexpected_answer",
        ) from error
