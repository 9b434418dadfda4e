"""Responses that the gateway gives itself, in the shape that clients of OpenAI's API read."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

JSON = "application/json"
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_SERVER_ERROR = 500


class Refusal(Exception):
    """The gateway answers the request itself; `status` and `code` say why."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        message: str,
        *,
        retry_after_s: int | None = None,
        loading: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.loading = loading

    def body(self) -> bytes:
        kind = "server_error" if self.status >= _SERVER_ERROR else "invalid_request_error"
        error = {
            "message": self.message,
            "type": _TYPES.get(self.status, kind),
            "param": None,
            "code": self.code,
        }
        content: dict[str, Any] = {"error": error}
        if self.loading is not None:
            content["loading"] = dict(self.loading)
        return json.dumps(content).encode()

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return headers


def rendered(
    status: HTTPStatus, body: bytes, headers: Mapping[str, str], *, keep_alive: bool, content_type: str = JSON
) -> bytes:
    """The bytes of a whole response."""
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"content-type: {content_type}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def refused(refusal: Refusal, *, keep_alive: bool) -> bytes:
    return rendered(refusal.status, refusal.body(), refusal.headers(), keep_alive=keep_alive)


def bad_request(code: str, message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, code, message)


def unavailable(code: str, message: str, *, retry_after_s: int = 5) -> Refusal:
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, code, message, retry_after_s=retry_after_s)
