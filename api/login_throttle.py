"""Counts wrong credentials per address and kind of credential; after too many, responds 429 with Retry-After.

The credential is verified first: a valid one is never delayed by wrong ones from its address and never counts as
wrong, even where it has no access. Only wrong credentials are counted, so the wait is at most a minute.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import structlog
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nodesmith.api.problems import respond
from nodesmith.contracts.words import ERRORS
from nodesmith.domain.errors import ServiceUnavailable, TooManyFailures
from nodesmith.runtime.client_addresses import network
from nodesmith.services.access.callers import KnownCredentials

log = structlog.stdlib.get_logger(__name__)

_MOST_KEYS = 10_000
_MINUTE_S = 60.0
_REGISTER = "/api/node/register"
_SIGN_IN = "/sign-in/"
_MARKS = ("nstok-", "nsinv-", "nsreg-", "nsadmin-")


@dataclass
class _Failures:
    """A leaky bucket: each failure adds to it, time empties it."""

    level: float
    at: float


class LoginFailures:
    """Recent failures by key. Counts in this process only."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = float(per_minute)
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def failed(self, key: str) -> float:
        """Count one failure; above the limit, count nothing and return how long to wait."""
        level = self._level(key)
        over = level - self._limit + 1
        if over > 0:
            return min(over * _MINUTE_S / self._limit, _MINUTE_S)
        self._failures[key] = _Failures(level + 1, self._clock())
        self._failures.move_to_end(key)
        while len(self._failures) > _MOST_KEYS:
            self._failures.popitem(last=False)
        return 0.0

    def _level(self, key: str) -> float:
        counted = self._failures.get(key)
        if counted is None:
            return 0.0
        return max(0.0, counted.level - (self._clock() - counted.at) * self._limit / _MINUTE_S)


@dataclass(frozen=True)
class _Credential:
    """The credential that a request carries."""

    kind: str
    secret: str = ""
    """empty where only the route can verify it: then a 401 means that it is wrong"""


class LoginThrottle:
    """Middleware for requests that carry a credential or open a sign-in link."""

    def __init__(self, app: ASGIApp, failures: LoginFailures, known: KnownCredentials) -> None:
        self._app = app
        self._failures = failures
        self._known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        credential = _credential_of(scope) if scope["type"] == "http" else None
        if credential is None:
            await self._app(scope, receive, send)
            return
        refused = False

        async def answering(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.UNAUTHORIZED:
                wait_s = await self._wait_s(scope, credential)
                refused = wait_s > 0
                if refused:
                    await _refuse(scope, receive, send, wait_s)
            if not refused:
                await send(message)

        await self._app(scope, receive, answering)

    async def _wait_s(self, scope: Scope, credential: _Credential) -> float:
        """Return how long a wrong credential has to wait; a valid one without access here does not wait."""
        try:
            if credential.secret and await self._known.include(credential.secret):
                return 0.0
        except ServiceUnavailable:
            return 0.0
        address = scope["client"][0] if scope.get("client") else ""
        return self._failures.failed(f"{network(address)} {credential.kind}")


def _credential_of(scope: Scope) -> _Credential | None:
    """Return a credential that may be a guess; a page that still polls after its session ended is not one."""
    path: str = scope["path"]
    if path.startswith(_SIGN_IN):
        return _Credential("sign-in")
    authorization = Headers(scope=scope).get("authorization")
    if authorization is None:
        return _Credential("registration") if path == _REGISTER else None
    secret = authorization.partition(" ")[2].strip()
    return _Credential(next((mark for mark in _MARKS if secret.startswith(mark)), ""), secret)


async def _refuse(scope: Scope, receive: Receive, send: Send, wait_s: float) -> None:
    log.warning("sign_in.too_many_failures", address=scope["client"][0] if scope.get("client") else "")
    seconds = math.ceil(wait_s)
    words = f"{ERRORS[TooManyFailures.code].sentence} Try again in {seconds} s."
    response = respond(
        Request(scope), HTTPStatus.TOO_MANY_REQUESTS, TooManyFailures.code, words, headers={"Retry-After": str(seconds)}
    )
    await response(scope, receive, send)
