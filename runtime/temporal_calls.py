"""Bounds calls to Temporal by its silence instead of their duration, so that slow does not count as down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import timedelta

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from nodesmith.domain.call_timeout import SharedTimeout
from nodesmith.domain.errors import AlreadyRunning, NodesmithError, OutcomeUnknown, ServiceUnavailable

SILENCE_S = 1.8
"""Temporal counts as down after this time without any answer; a write then fails within 2 s."""
BUSY_LIMIT_S = 20.0
"""how long a call may wait while Temporal answers other calls or the probe"""
PROBE_EVERY_S = 0.3
RECENT_ANSWER_S = 1.0
"""a write checks Temporal's health first if its last answer is older than this"""
_NO_ANSWER = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.UNKNOWN,  # the connection broke during the call
)
_has_written: ContextVar[bool] = ContextVar("temporal_has_written", default=False)
"""whether this request, or this activity, has sent a write to Temporal"""


class Calls:
    """The calls of one client. While a call waits, a health probe checks whether Temporal answers at all."""

    def __init__(self, client: Client, *, silence_s: float = SILENCE_S, longest_s: float = BUSY_LIMIT_S) -> None:
        self._client = client
        self._longest = timedelta(seconds=longest_s)
        self._probe_every_s = min(PROBE_EVERY_S, silence_s / 4)
        self._timeout = SharedTimeout(silence_s=silence_s, longest_s=longest_s)
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._last_answer_at = float("-inf")

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Raise `ServiceUnavailable` when Temporal is silent; `rpc_timeout` would bound only one attempt."""
        with self._translate_errors():
            async with self._timeout.bounded():
                with self._probing():
                    yield
        self._mark_answered()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Like `reading`, but raise `OutcomeUnknown` once the call was sent, because it may have taken effect."""
        await self._ensure_reachable()
        _has_written.set(True)
        async with self.reading():
            yield

    async def ping(self) -> None:
        async with self.reading():
            await self._check_health()

    async def _ensure_reachable(self) -> None:
        """Fail before anything is sent if Temporal is down, so that the failure has no effect."""
        if asyncio.get_running_loop().time() - self._last_answer_at > RECENT_ANSWER_S:
            await self.ping()

    async def _check_health(self) -> None:
        await self._client.service_client.check_health(timeout=self._longest)

    def _mark_answered(self) -> None:
        self._last_answer_at = asyncio.get_running_loop().time()
        self._timeout.answered()

    @contextmanager
    def _probing(self) -> Iterator[None]:
        self._waiting += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._probe_every_s, self._start_probe)
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._stop_probe()

    def _start_probe(self) -> None:
        self._probe = asyncio.create_task(self._probe_until_stopped())

    def _stop_probe(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._probe is not None:
            self._probe.cancel()
        self._timer = self._probe = None

    async def _probe_until_stopped(self) -> None:
        while True:
            with contextlib.suppress(RPCError, RuntimeError):
                await self._check_health()
                self._mark_answered()
            await asyncio.sleep(self._probe_every_s)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise _no_answer() from None
        except RPCError as error:
            if error.status in _NO_ANSWER:
                raise _no_answer() from error
            self._mark_answered()
            if is_unprepared(error):
                raise ServiceUnavailable(f"Temporal is not prepared yet: {error.message}", server="temporal") from error
            raise
        except AlreadyRunning:
            self._mark_answered()
            raise
        except RuntimeError as error:  # raised by a lazy client that never connected
            raise _no_answer() from error


def _no_answer() -> NodesmithError:
    if _has_written.get():
        return OutcomeUnknown(
            "Temporal did not answer: it is not known whether the request was carried out.", server="temporal"
        )
    return ServiceUnavailable("Temporal does not answer.", server="temporal")


def is_unprepared(error: RPCError) -> bool:
    """Whether namespace or search attributes are missing on a fresh server; it has no error code for that."""
    is_namespace_error = error.message.startswith("Namespace ")
    if error.status is RPCStatusCode.NOT_FOUND:
        return is_namespace_error
    return error.status is RPCStatusCode.INVALID_ARGUMENT and is_namespace_error and "search attribute" in error.message
