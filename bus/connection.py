"""One connection to NATS that comes back by itself, with the newest credential, for either end."""

import asyncio
import base64
import contextlib
import itertools
import random
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import nats.errors
import structlog
from nats.aio.client import Client, Server
from nats.aio.msg import Msg

from bus.credentials import CredentialIssuer
from bus.nkeys import KeyPair
from contracts import subjects
from domain.errors import LinkDown, NoAnswer, NodeAway
from domain.node import NatsCredential

log = structlog.stdlib.get_logger(__name__)

Credentials = Callable[[], NatsCredential]
Handler = Callable[[Msg], Awaitable[None]]

PING_INTERVAL = 10
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0
_CANCEL_AGAIN = 0.5
_SETTLE_S = 5
LINK_WAIT_S = 5.0
"""a question waits so long for our own link: a restart of NATS is shorter"""
NODES_RETURN_S = _LONGEST_WAIT + 3.0
"""when our link is back, nodes are so much later at most"""


@dataclass(frozen=True)
class _Subscription:
    subject: str
    handler: Handler
    queue: str


class _Signer:
    """Answers the server's nonce with the newest credential; signature and JWT are always of the same one."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._jwt = b""

    def sign(self, nonce: str) -> bytes:
        """The client gives up for good on an error that is not NATS's own, so ours become one."""
        try:
            newest = self._credentials()
            signature = KeyPair.from_seed(newest.seed).sign(nonce.encode())
        except Exception as error:
            raise nats.errors.Error(f"no usable credential: {error!r}") from error
        self._jwt = newest.jwt.encode()
        return base64.b64encode(signature)

    def jwt(self) -> bytes:
        return self._jwt


class Bus:
    """A lasting link: subscriptions outlive reconnects, expired credentials and a server that starts later."""

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        *,
        name: str,
        inbox: str = "_INBOX",
        ping_interval: int = PING_INTERVAL,
        tls: ssl.SSLContext | None = None,
        others_return_s: float = 0.0,
    ) -> None:
        """After a reconnect, those we talk to are there so much later at most."""
        signer = _Signer(credentials)
        self._options: dict[str, Any] = {
            "servers": url,
            "name": name,
            "inbox_prefix": inbox,
            "signature_cb": signer.sign,
            "user_jwt_cb": signer.jwt,
            "ping_interval": ping_interval,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 1,
            "reconnect_to_server_handler": _next_try,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_lost,
            "reconnected_cb": self._on_back,
            **_encrypted(url, tls),
        }
        self._name = name
        self._client = Client()
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._subscriptions: list[_Subscription] = []
        self._in_flight: set[asyncio.Task[Msg]] = set()
        self._on_reconnect: list[Callable[[], None]] = []
        self._back_at: float | None = None
        self._others_return_s = others_return_s
        self.refused = asyncio.Event()
        """the server does not take our credential (any more)"""
        self.refusals: deque[str] = deque(maxlen=100)
        """what the server did not let us say or hear, newest last"""

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def start(self) -> None:
        """Begin to connect, and never give up."""
        self._keeper = asyncio.create_task(self._keep_open(), name=f"bus-{self._name}")

    async def wait_up(self, within: float | None = None) -> bool:
        """Wait for the link; False when it is still down after `within` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._up.wait()
        return self.is_up

    def on_reconnect(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each reconnect: what was said meanwhile is lost."""
        self._on_reconnect.append(listener)

    async def renew(self) -> None:
        """Connect anew with the newest credential, before the server drops the old one."""
        if self.is_up:
            await self._client.force_reconnect()

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> None:
        """Hear a subject for as long as this bus lives; in force on return if the link is up."""
        subscription = _Subscription(subject, handler, queue)
        self._subscriptions.append(subscription)
        if self.is_up:
            await self._hear(subscription)
            await self.settle()

    async def publish(self, subject: str, payload: bytes) -> bool:
        """Best effort: False when the link is down, and nothing is kept for later."""
        if not self.is_up:
            return False
        try:
            await self._client.publish(subject, payload)
        except nats.errors.Error as error:
            log.warning("nats.not_published", link=self._name, subject=subject, error=str(error))
            return False
        return True

    async def request(self, subject: str, payload: bytes, *, within: float) -> bytes:
        """Ask and wait. `NodeAway`: nobody listens. `NoAnswer`: too slow, or our own link was lost meanwhile.

        `LinkDown`: we have no link, or have it again and the nodes may not yet.
        """
        until = asyncio.get_running_loop().time() + within
        if not await self.wait_up(min(within, LINK_WAIT_S)):
            raise LinkDown(server="nats")
        try:
            async with asyncio.timeout_at(until):
                return await self._ask(subject, payload, within)
        except nats.errors.NoRespondersError:
            raise (LinkDown(server="nats") if self._is_just_back() else NodeAway(subject=subject)) from None
        except (TimeoutError, nats.errors.Error) as error:
            raise NoAnswer(subject=subject) from error

    def _is_just_back(self) -> bool:
        return self._back_at is not None and time.monotonic() - self._back_at < self._others_return_s

    async def settle(self) -> None:
        """Return once the server has taken in all that was said before.

        The client's flush writes its PING ahead of what is queued: only the second one comes after it.
        """
        with contextlib.suppress(nats.errors.Error):
            await self._client.flush(_SETTLE_S)
            await self._client.flush(_SETTLE_S)

    async def close(self) -> None:
        """Say what is still to be said, then leave."""
        if self._keeper is not None:
            while not self._keeper.done():  # the client swallows a cancel that comes while it connects
                self._keeper.cancel()
                await asyncio.wait([self._keeper], timeout=_CANCEL_AGAIN)
        if self.is_up:
            await self.settle()
        self._up.clear()
        await self._client.close()

    async def _ask(self, subject: str, payload: bytes, within: float) -> bytes:
        asking = asyncio.ensure_future(self._client.request(subject, payload, timeout=within))
        self._in_flight.add(asking)
        try:
            return (await asking).data
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise NoAnswer("The link to NATS was lost before the answer came.", subject=subject) from None
        finally:
            self._in_flight.discard(asking)

    async def _keep_open(self) -> None:
        """The client closes for good when its credential ends; then a new one takes over."""
        for number in itertools.count():
            closed = asyncio.Event()
            self._client = Client()
            await self._client.connect(**self._options, closed_cb=_setter(closed))
            await self._hear_all()
            self._go_up(again=number > 0)
            await closed.wait()
            self._go_down()

    async def _hear_all(self) -> None:
        heard = 0
        while heard < len(self._subscriptions):  # one may be added while we settle
            for subscription in self._subscriptions[heard:]:
                await self._hear(subscription)
                heard += 1
            await self.settle()

    async def _hear(self, subscription: _Subscription) -> None:
        await self._client.subscribe(subscription.subject, queue=subscription.queue, cb=subscription.handler)

    async def _on_lost(self) -> None:
        self._go_down()

    async def _on_back(self) -> None:
        self._go_up(again=True)

    async def _on_error(self, error: Exception) -> None:
        words = str(error)
        if "permissions violation" in words.lower():
            self.refusals.append(words)
            log.warning("nats.refused", link=self._name, error=words)
        elif isinstance(error, nats.errors.Error):
            if "authorization violation" in words.lower():
                self.refused.set()
            log.warning("nats.error", link=self._name, error=words)
        else:
            log.debug("nats.error", link=self._name, error=repr(error))

    def _go_up(self, *, again: bool) -> None:
        self._up.set()
        self._back_at = time.monotonic() if again else None
        self.refused.clear()
        log.info("nats.up", link=self._name, again=again)
        for listener in self._on_reconnect if again else ():
            listener()

    def _go_down(self) -> None:
        """A reply to what was asked before cannot come any more: tell those who wait for one."""
        if self.is_up:
            log.warning("nats.down", link=self._name)
        self._up.clear()
        for asking in list(self._in_flight):
            asking.cancel()


async def connect_control(
    url: str,
    issuer: CredentialIssuer,
    *,
    name: str,
    lifetime: timedelta = timedelta(hours=24),
    patience: float = 5.0,
    tls: ssl.SSLContext | None = None,
) -> Bus:
    """The control plane's end. Returns after `patience` seconds even if NATS is down: the bus goes on trying."""
    newest = partial(issuer.control_credential, lifetime)
    bus = Bus(url, newest, name=name, tls=tls, others_return_s=NODES_RETURN_S)
    bus.start()
    await bus.wait_up(patience)
    return bus


def node_bus(
    url: str,
    node_id: str,
    credentials: Credentials,
    *,
    ping_interval: int = PING_INTERVAL,
    tls: ssl.SSLContext | None = None,
) -> Bus:
    """A node's end, not started yet: it hears replies only where no other node may listen."""
    inbox = subjects.inbox(node_id)
    return Bus(url, credentials, name=f"node-{node_id}", inbox=inbox, ping_interval=ping_interval, tls=tls)


def _encrypted(url: str, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """For a tls:// address the handshake comes before anything else: nobody in between can talk us out of it."""
    if not url.startswith("tls://"):
        return {}
    return {"tls": tls or ssl.create_default_context(), "tls_handshake_first": True}


def _next_try(servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
    """Soon at first, then later and later, never all nodes at the same moment."""
    server = min(servers, key=lambda each: each.reconnects)
    longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(server.reconnects, 10))
    return server, random.uniform(longest / 4, longest)  # noqa: S311 - jitter, no secret


def _setter(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def closed() -> None:
        event.set()

    return closed
