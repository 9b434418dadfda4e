"""Calls to Temporal, bounded by its silence and not by their own duration: slow is not down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import timedelta

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from domain.errors import AlreadyRunning, NodesmithError, OutcomeUnknown, ServiceUnavailable
from domain.patience import Patience

SILENCE_S = 1.8
"""A Temporal that answers nobody for so long is down: a write then answers within 2 s."""
BUSY_LIMIT_S = 20.0
"""how long a call may wait for a Temporal that answers others, or our probe"""
PROBE_EVERY_S = 0.3
HEARD_LATELY_S = 1.0
"""before a write, a Temporal that was not heard for so long is asked whether it is there"""
_NO_ANSWER = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.UNKNOWN,  # the link broke under the call
)
_has_written: ContextVar[bool] = ContextVar("temporal_has_written", default=False)
"""whether this request, or this activity, has sent a write to Temporal"""


class Calls:
    """The calls of one client. While one of them waits, a probe asks whether Temporal answers anybody."""

    def __init__(self, client: Client, *, silence_s: float = SILENCE_S, longest_s: float = BUSY_LIMIT_S) -> None:
        self._client = client
        self._longest = timedelta(seconds=longest_s)
        self._probe_every_s = min(PROBE_EVERY_S, silence_s / 4)
        self._patience = Patience(silence_s=silence_s, longest_s=longest_s)
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._heard_at = float("-inf")

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """`ServiceUnavailable` when Temporal is silent; `rpc_timeout` would bound one attempt only."""
        with self._in_our_words():
            async with self._patience.bounded():
                with self._probing():
                    yield
        self._heard()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """As `reading`, but `OutcomeUnknown` once the call was sent: it may have been carried out."""
        await self._ensure_heard()
        _has_written.set(True)
        async with self.reading():
            yield

    async def ping(self) -> None:
        async with self.reading():
            await self._ask()

    async def _ensure_heard(self) -> None:
        """A refusal before anything was sent is a refusal that has changed nothing."""
        if asyncio.get_running_loop().time() - self._heard_at > HEARD_LATELY_S:
            await self.ping()

    async def _ask(self) -> None:
        await self._client.service_client.check_health(timeout=self._longest)

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._patience.answered()

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
        self._probe = asyncio.create_task(self._keep_asking())

    def _stop_probe(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._probe is not None:
            self._probe.cancel()
        self._timer = self._probe = None

    async def _keep_asking(self) -> None:
        while True:
            with contextlib.suppress(RPCError, RuntimeError):
                await self._ask()
                self._heard()
            await asyncio.sleep(self._probe_every_s)

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise _no_answer() from None
        except RPCError as error:
            if error.status in _NO_ANSWER:
                raise _no_answer() from error
            self._heard()
            if is_unprepared(error):
                raise ServiceUnavailable(f"Temporal is not prepared yet: {error.message}", server="temporal") from error
            raise
        except AlreadyRunning:
            self._heard()
            raise
        except RuntimeError as error:  # a lazy client that never connected says it this way
            raise _no_answer() from error


def _no_answer() -> NodesmithError:
    if _has_written.get():
        return OutcomeUnknown(
            "Temporal did not answer: it is not known whether the request was carried out.", server="temporal"
        )
    return ServiceUnavailable("Temporal does not answer.", server="temporal")


def is_unprepared(error: RPCError) -> bool:
    """A server that has just started knows neither the namespace nor our search attributes; no code says so."""
    said = error.message.startswith("Namespace ")
    if error.status is RPCStatusCode.NOT_FOUND:
        return said
    return error.status is RPCStatusCode.INVALID_ARGUMENT and said and "search attribute" in error.message
