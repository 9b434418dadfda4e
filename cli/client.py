"""The HTTP client of the command line: finds the API, and turns what goes wrong into a sentence and a remedy."""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import httpx2
from pydantic import BaseModel, ValidationError

from cli.failures import UNREACHABLE, CommandFailed
from contracts.http import Problem
from runtime.proxies import is_loopback
from runtime.trust import trusting

Shape = TypeVar("Shape", bound=BaseModel)

Given = str | int | bool | list[str] | None
"""a value of a query; a list is the same name more than once"""

_TIMEOUT = httpx2.Timeout(35.0, connect=5.0)
_UPLOAD_TIMEOUT = httpx2.Timeout(120.0, connect=5.0)
_STREAM_TIMEOUT = httpx2.Timeout(40.0, connect=5.0)
"""the API sends a comment every 15 s: longer silence is a dead link"""


COMMENT = ":"
"""the name under which a comment is passed on; the API sends one as a keep-alive"""


@dataclass(frozen=True)
class ServerSentEvent:
    """One event of the stream; progress ticks have no id."""

    event: str
    data: Any
    id: str = ""


class ApiClient:
    """One API, one token. Every method raises `CommandFailed` when the API cannot or will not."""

    def __init__(self, url: str, token: str, ca_file: Path | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        trusted = trusting(ca_file) if self.url.startswith("https:") else True
        self._http = httpx2.Client(
            base_url=self.url,
            headers=headers,
            timeout=_TIMEOUT,
            verify=trusted,
            trust_env=not is_loopback(self.url),  # a proxy is for other machines
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: Given) -> Any:
        return self._send("GET", path, params=_given(query))

    def post(self, path: str, body: BaseModel | None = None, **query: str | None) -> Any:
        return self._send("POST", path, json=_filled_in(body), params=_given(query))

    def patch(self, path: str, values: Mapping[str, str], **query: str | None) -> Any:
        return self._send("PATCH", path, json=dict(values), params=_given(query))

    def put(self, path: str, body: BaseModel, **query: str | None) -> Any:
        return self._send("PUT", path, json=_filled_in(body), params=_given(query))

    def upload(self, path: str, file: BinaryIO, **query: Given) -> Any:
        """Send a file as it is read; it may take as long as it moves."""
        return self._send("PUT", path, content=file, params=_given(query), timeout=_UPLOAD_TIMEOUT)

    def delete(self, path: str, **query: str | None) -> Any:
        return self._send("DELETE", path, params=_given(query))

    def post_once(self, path: str, body: BaseModel) -> Any:
        """Post, and once more if the answer got lost: the key makes the second a repetition of the first."""
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        try:
            return self._send("POST", path, json=_filled_in(body), headers=headers)
        except CommandFailed as failure:
            if not failure.may_pass:
                raise
        return self._send("POST", path, json=_filled_in(body), headers=headers)

    @contextmanager
    def events(self, path: str, *, last_event_id: str = "", **query: str) -> Iterator[Iterator[ServerSentEvent]]:
        """Follow an event stream; `httpx2.TransportError` when it breaks."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_event_id} if last_event_id else {})
        with self._http.stream("GET", path, params=query, headers=headers, timeout=_STREAM_TIMEOUT) as response:
            if response.is_error:
                response.read()
                raise refusal(response)
            yield parse_events(response.iter_lines())

    def _send(self, method: str, path: str, **parts: Any) -> Any:
        try:
            response = self._http.request(method, path, **parts)
        except httpx2.TransportError as error:
            raise unreachable(self.url, error) from error
        if response.is_error:
            raise refusal(response)
        return response.json() if response.content else None


def segment(name: str) -> str:
    """One segment of a path: a name may hold a slash or a space."""
    return quote(name, safe="")


def _given(query: Mapping[str, Given]) -> dict[str, Given]:
    return {name: value for name, value in query.items() if value is not None}


def _filled_in(body: BaseModel | None) -> Any:
    return body.model_dump(mode="json", exclude_defaults=True) if body else None


def parse_events(lines: Iterator[str]) -> Iterator[ServerSentEvent]:
    """Read the stream format: fields until an empty line; a comment stands alone."""
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


def refusal(response: httpx2.Response) -> CommandFailed:
    """Say what the API said; it speaks problem+json, a proxy in front of it may not."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return CommandFailed(
            f"The API answered {response.status_code} {response.reason_phrase}, without saying why.",
            "Is the address right? `--url` or NODESMITH_URL names it.",
            code="not_a_problem",
            may_pass=response.is_server_error,
        )
    return CommandFailed(problem.detail, problem.remedy, code=problem.code, may_pass=response.is_server_error)


def unreachable(url: str, error: httpx2.TransportError) -> CommandFailed:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        sentence, remedy = f"Nobody answers at {url}.", _what_to_start(url)
    else:
        sentence = f"The connection to {url} broke ({type(error).__name__})."
        remedy = "Nothing that was accepted is lost: `nodesmith ops ls` shows it."
    return CommandFailed(sentence, remedy, code="unreachable", exit_code=UNREACHABLE, may_pass=True)


def _what_to_start(url: str) -> str:
    remedy = "Start Nodesmith with `nodesmith up` (or `make run`)."
    if is_loopback(url) or not getproxies():
        return remedy
    return f"{remedy} A proxy is set in the environment: NO_PROXY={urlsplit(url).hostname} goes without it."


def read(shape: type[Shape], answer: Any) -> Shape:
    """Read an answer; a shape that does not fit means another program, or another version, answers there."""
    try:
        return shape.model_validate(answer)
    except ValidationError as error:
        raise CommandFailed(
            f"The API's answer is not a {shape.__name__}.",
            "Does the address belong to Nodesmith, and is it of this version?",
            code="unexpected_answer",
        ) from error
