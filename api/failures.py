"""Wrong credentials, counted per address: after too many of them an address has to wait before it may try another."""

import hashlib
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

from api.problems import respond
from contracts.words import ERRORS
from domain.errors import TooManyFailures

log = structlog.stdlib.get_logger(__name__)

_MOST_ADDRESSES = 10_000
_MOST_KNOWN = 10_000
_MINUTE_S = 60.0
_REGISTER = "/api/node/register"
_IN_BODY = "a token in the body"
"""not read here, so it never becomes known: after too many wrong ones nobody registers so from that address"""


@dataclass
class _Failures:
    """A bucket: each failure fills it, time empties it."""

    level: float
    at: float


class FailedSignIns:
    """How often each address was wrong lately. Counts in this process only: it slows guessing down, and saves work."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = float(per_minute)
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    def wait_s(self, address: str, credential: str) -> float:
        """How long this address has to wait; nothing for a credential that was right from there before."""
        over = self._level(address) - self._limit + 1
        if over <= 0 or _mark(address, credential) in self._known:
            return 0.0
        return over * _MINUTE_S / self._limit

    def failed(self, address: str) -> None:
        """A credential that was right before stays known: it was no guess, wherever it is shown."""
        self._failures[address] = _Failures(self._level(address) + 1, self._clock())
        self._failures.move_to_end(address)
        while len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, credential: str) -> None:
        mark = _mark(address, credential)
        self._known[mark] = None
        self._known.move_to_end(mark)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _level(self, address: str) -> float:
        counted = self._failures.get(address)
        if counted is None:
            return 0.0
        return max(0.0, counted.level - (self._clock() - counted.at) * self._limit / _MINUTE_S)


class SlowGuessing:
    """Around every request that shows a credential, or opens a sign-in link."""

    def __init__(self, app: ASGIApp, failures: FailedSignIns) -> None:
        self._app = app
        self._failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        credential = _credential(scope) if scope["type"] == "http" else ""
        if not credential:
            await self._app(scope, receive, send)
            return
        address = scope["client"][0] if scope.get("client") else ""
        wait_s = self._failures.wait_s(address, credential)
        if wait_s > 0:
            await _refuse(scope, receive, send, address, wait_s)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope, address, credential, message["status"])
            await send(message)

        await self._app(scope, receive, counting)

    def _count(self, scope: Scope, address: str, credential: str, status: int) -> None:
        if status == HTTPStatus.UNAUTHORIZED:
            self._failures.failed(address)
        elif status < HTTPStatus.BAD_REQUEST and credential != _IN_BODY and not scope.get("state", {}).get("is_open"):
            self._failures.succeeded(address, credential)


def _credential(scope: Scope) -> str:
    """What may be a guess; a page that goes on asking after its session has ended is none."""
    path: str = scope["path"]
    if path.startswith("/sign-in/"):
        return path
    return Headers(scope=scope).get("authorization", _IN_BODY if path == _REGISTER else "")


async def _refuse(scope: Scope, receive: Receive, send: Send, address: str, wait_s: float) -> None:
    log.warning("sign_in.too_many_failures", address=address, path=scope["path"])
    seconds = math.ceil(wait_s)
    words = f"{ERRORS[TooManyFailures.code].sentence} Try again in {seconds} s."
    response = respond(
        Request(scope), HTTPStatus.TOO_MANY_REQUESTS, TooManyFailures.code, words, headers={"Retry-After": str(seconds)}
    )
    await response(scope, receive, send)


def _mark(address: str, credential: str) -> str:
    return hashlib.sha256(f"{address} {credential}".encode()).hexdigest()
