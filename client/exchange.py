"""The parts of a request and an answer that do not depend on how they are sent."""

import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError

from nodesmith.client.calls import Call
from nodesmith.client.errors import ClientError, Refused, UnexpectedAnswer, Unreachable
from nodesmith.contracts.http.shared import Problem
from nodesmith.runtime.proxies import is_loopback
from nodesmith.runtime.retry_after import retry_after_s
from nodesmith.runtime.tls_trust import trusting

BASE = "/api/v1"
LONGEST_RETRY_AFTER_S = 60.0
"""upper limit, because somebody waits for the answer"""
SHORTEST_PAUSE_S = 0.2
_REPEATABLE = ("GET", "PUT", "POST")
"""a POST has an idempotency key; a second DELETE would find nothing"""

TIMEOUT = httpx2.Timeout(35.0, connect=5.0)
UPLOAD_TIMEOUT = httpx2.Timeout(120.0, connect=5.0)
STREAM_TIMEOUT = httpx2.Timeout(40.0, connect=5.0)
"""the API sends a comment every 15 s: a longer silence means a dead connection"""


@dataclass(frozen=True)
class ApiAddress:
    """Address, token and trusted CA of one API."""

    url: str
    token: str = field(repr=False, default="")
    ca_file: Path | None = None

    def options(self) -> dict[str, Any]:
        """The settings of an HTTP client for this API."""
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {self.token}"} if self.token else {},
            "timeout": TIMEOUT,
            "verify": self._verify(),
            "trust_env": not is_loopback(self.url),  # no proxy for this machine's own API
        }

    def _verify(self) -> ssl.SSLContext | bool:
        if self.url.startswith("https:"):
            return trusting(self.ca_file)
        # Plain HTTP to this machine uses no certificate: do not spend the time to load the system's.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_loopback(self.url) else True


def request_of(call: Call[Any]) -> dict[str, Any]:
    """The arguments with which an HTTP client sends the call, the same each time it is sent."""
    parts: dict[str, Any] = {"method": call.method, "url": f"{BASE}{call.path}", "params": _without_none(call.query)}
    if call.method == "POST":
        parts["headers"] = {"Idempotency-Key": call.key or str(uuid.uuid4())}
    if call.upload is not None:
        return {**parts, "content": call.upload, "timeout": UPLOAD_TIMEOUT}
    if call.body is not None:
        parts["json"] = _json_body(call.body)
    return parts


def read_answer(call: Call[Any], response: httpx2.Response) -> Any:
    """Parse the answer, or raise what the API refused."""
    if response.is_error:
        raise refusal(response)
    return read(call.shape, response.content)


def read(shape: Any, content: bytes) -> Any:
    if shape is None:
        return None
    try:
        return _adapter(shape).validate_json(content)
    except ValidationError as error:
        name = getattr(shape, "__name__", str(shape))
        raise UnexpectedAnswer(f"The API's answer is not a {name}.") from error


@lru_cache(maxsize=256)
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def is_repeatable(call: Call[Any]) -> bool:
    return call.method in _REPEATABLE and call.upload is None


def pause_s(error: ClientError) -> float:
    """How long to wait before the same call is sent again."""
    return max(SHORTEST_PAUSE_S, error.retry_after_s)


def refusal(response: httpx2.Response) -> Refused:
    """Read an error answer; the API sends problem+json, a proxy in front of it may not."""
    asked = min(retry_after_s(response.headers.get("Retry-After", "")) or 0.0, LONGEST_RETRY_AFTER_S)
    status = f"{response.status_code} {response.reason_phrase}".rstrip()
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        problem = Problem(
            title=response.reason_phrase,
            status=response.status_code,
            detail=f"The API answered {status} without a reason.",
            code="not_a_problem",
            remedy="Check the address: `--url` or NODESMITH_URL.",
        )
    return Refused(problem, retry_after_s=asked)


def failure(url: str, error: httpx2.RequestError) -> ClientError:
    """Explain why there is no answer, or none that can be read."""
    if not isinstance(error, httpx2.TransportError):
        return UnexpectedAnswer(f"The answer of {url} cannot be read ({type(error).__name__}).")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return Unreachable(f"Nothing answers at {url}.", _start_remedy(url))
    return Unreachable(
        f"The connection to {url} broke ({type(error).__name__}).",
        "Accepted operations are not lost: `nodesmith ops ls` lists them.",
    )


def _start_remedy(url: str) -> str:
    remedy = "Start Nodesmith with `nodesmith up` (or `make run`)."
    if is_loopback(url) or not getproxies():
        return remedy
    return f"{remedy} The environment sets a proxy; NO_PROXY={urlsplit(url).hostname} bypasses it."


def _without_none(query: Mapping[str, Any] | None) -> dict[str, Any]:
    given = {name: value for name, value in (query or {}).items() if value is not None and value != ""}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items()}


def _json_body(body: BaseModel | Mapping[str, Any]) -> Any:
    return body.model_dump(mode="json", exclude_unset=True) if isinstance(body, BaseModel) else dict(body)
