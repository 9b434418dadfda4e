"""The NATS connection of nodes and of the control plane; reconnects by itself with the newest credential."""

import asyncio
import base64
import contextlib
import itertools
import random
import re
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

from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.bus.nkeys import KeyPair
from nodesmith.bus.requests import Reply, Requests
from nodesmith.bus.signed_messages import NodeKeys, ReportSigner, Signatures, Signed
from nodesmith.domain.errors import BadSignature, LinkDown, NoAnswer, NodeAway
from nodesmith.domain.node import NatsCredential

log = structlog.stdlib.get_logger(__name__)

Credentials = Callable[[], NatsCredential]
Handler = Callable[[Msg], Awaitable[None]]

PING_INTERVAL = 10
_FIRST_RECONNECT_S = 0.1
_LONGEST_RECONNECT_S = 5.0
_CANCEL_RETRY_S = 0.5
_SETTLE_S = 5
LINK_WAIT_S = 5.0
"""how long a request waits for our own connection; a restart of NATS is shorter"""
NODES_RETURN_S = _LONGEST_RECONNECT_S + 3.0
"""nodes reconnect at most this much later than we do"""


@dataclass(frozen=True)
class _Subscription:
    subject: str
    handler: Handler
    queue: str


_NONCE = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""the form of a server nonce; nothing else is signed here, because the same key signs reports"""


class _Login:
    """Signs the server's nonce with the newest credential; signature and JWT always belong together."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._jwt = b""

    def sign(self, nonce: str) -> bytes:
        """Sign the nonce. Errors are raised as NATS errors, because the client stops for good on any other."""
        if not _NONCE.fullmatch(nonce):
            raise nats.errors.Error("The server asked for a signature of something that is not a nonce.")
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
    """A lasting connection: subscriptions survive reconnects, expired credentials and a server that starts later."""

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        *,
        name: str,
        sends_requests: bool = True,
        signer: ReportSigner | None = None,
        signatures: Signatures | None = None,
        ping_interval: int = PING_INTERVAL,
        tls: ssl.SSLContext | None = None,
        peers_return_s: float = 0.0,
    ) -> None:
        """A node has a `signer` and sends no requests; the control plane verifies with `signatures`.

        Peers reconnect at most `peers_return_s` later than this connection.
        """
        login = _Login(credentials)
        self._options: dict[str, Any] = {
            "servers": url,
            "name": name,
            "signature_cb": login.sign,
            "user_jwt_cb": login.jwt,
            "ping_interval": ping_interval,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 1,
            "reconnect_to_server_handler": _next_reconnect,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            **_tls_options(url, tls),
        }
        self._name = name
        self._client = Client()
        self._up = asyncio.Event()
        self._connection_task: asyncio.Task[None] | None = None
        self._requests = Requests()
        answers = _Subscription(self._requests.subject, self._requests.receive, queue="")
        self._subscriptions = [answers] if sends_requests else []
        self._on_reconnect: list[Callable[[], None]] = []
        self._reconnected_at: float | None = None
        self._peers_return_s = peers_return_s
        self._signer = signer
        self._signatures = signatures
        self.refused = asyncio.Event()
        """the server rejects our credential"""
        self.refusals: deque[str] = deque(maxlen=100)
        """permission violations that the server reported, newest last"""

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def start(self) -> None:
        """Start connecting, with retries for ever."""
        self._connection_task = asyncio.create_task(self._maintain_connection(), name=f"bus-{self._name}")

    async def wait_up(self, within: float | None = None) -> bool:
        """Wait for the connection; False when it is still down after `within` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._up.wait()
        return self.is_up

    def on_reconnect(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each reconnect, because messages sent meanwhile are lost."""
        self._on_reconnect.append(listener)

    async def renew(self) -> None:
        """Reconnect with the newest credential, before the old one expires."""
        if self.is_up:
            await self._client.force_reconnect()

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> None:
        """Subscribe for the lifetime of this bus; active on return if the connection is up."""
        subscription = _Subscription(subject, handler, queue)
        self._subscriptions.append(subscription)
        if self.is_up:
            await self._subscribe(subscription)
            await self.settle()

    async def publish(self, subject: str, payload: bytes) -> bool:
        """Publish without a delivery guarantee; False when the connection is down, and nothing is queued."""
        if not self.is_up:
            return False
        try:
            await self._client.publish(subject, payload)
        except nats.errors.Error as error:
            log.warning("nats.not_published", link=self._name, subject=subject, error=str(error))
            return False
        return True

    async def request(self, subject: str, payload: bytes, *, within: float) -> Reply:
        """Send a request and wait for its reply.

        Raises `NodeAway` without a subscriber, `NoAnswer` after a timeout or if the connection was lost meanwhile, and
        `LinkDown` if we have no connection, or have just reconnected and the nodes may not have.
        """
        until = asyncio.get_running_loop().time() + within
        if not await self.wait_up(min(within, LINK_WAIT_S)):
            raise LinkDown(server="nats")
        try:
            async with asyncio.timeout_at(until):
                return await self._send_request(subject, payload)
        except NodeAway:
            raise (LinkDown(server="nats") if self._reconnected_recently() else NodeAway(subject=subject)) from None
        except (TimeoutError, nats.errors.Error) as error:
            raise NoAnswer(subject=subject) from error

    async def _send_request(self, subject: str, payload: bytes) -> Reply:
        with self._requests.expect(subject) as (reply, answer):
            await self._client.publish(subject, payload, reply=reply)
            return await answer

    def seal(self, what: Signed, about: str, payload: bytes) -> bytes:
        """Sign a node's message with its key; a LocalAI worker signs nothing."""
        return self._signer.seal(what, about, payload) if self._signer else payload

    @property
    def signatures(self) -> Signatures:
        """The verifier of node messages; only the control plane has the keys."""
        if self._signatures is None:
            raise BadSignature("This connection has no keys of nodes.")
        return self._signatures

    def _reconnected_recently(self) -> bool:
        return self._reconnected_at is not None and time.monotonic() - self._reconnected_at < self._peers_return_s

    async def settle(self) -> None:
        """Wait until the server has processed everything sent before.

        The client's flush writes its PING ahead of queued messages, so only the second flush follows them.
        """
        with contextlib.suppress(nats.errors.Error):
            await self._client.flush(_SETTLE_S)
            await self._client.flush(_SETTLE_S)

    async def close(self) -> None:
        """Flush pending messages, then disconnect."""
        if self._connection_task is not None:
            while not self._connection_task.done():  # the client swallows a cancel while it connects
                self._connection_task.cancel()
                await asyncio.wait([self._connection_task], timeout=_CANCEL_RETRY_S)
        if self.is_up:
            await self.settle()
        self._up.clear()
        self._requests.fail_all()
        await self._client.close()

    async def _maintain_connection(self) -> None:
        """Connect again with a new client whenever one closes for good, as it does when its credential expires."""
        for number in itertools.count():
            closed = asyncio.Event()
            self._client = Client()
            await self._client.connect(**self._options, closed_cb=_setter(closed))
            await self._subscribe_all()
            self._mark_up(again=number > 0)
            await closed.wait()
            self._mark_down()

    async def _subscribe_all(self) -> None:
        subscribed = 0
        while subscribed < len(self._subscriptions):  # one may be added while we flush
            for subscription in self._subscriptions[subscribed:]:
                await self._subscribe(subscription)
                subscribed += 1
            await self.settle()

    async def _subscribe(self, subscription: _Subscription) -> None:
        await self._client.subscribe(subscription.subject, queue=subscription.queue, cb=subscription.handler)

    async def _on_disconnected(self) -> None:
        self._mark_down()

    async def _on_reconnected(self) -> None:
        self._mark_up(again=True)

    async def _on_error(self, error: Exception) -> None:
        text = str(error)
        if "permissions violation" in text.lower():
            self.refusals.append(text)
            log.warning("nats.refused", link=self._name, error=text)
        elif isinstance(error, nats.errors.Error):
            if "authorization violation" in text.lower():
                self.refused.set()
            log.warning("nats.error", link=self._name, error=text)
        else:
            log.debug("nats.error", link=self._name, error=repr(error))

    def _mark_up(self, *, again: bool) -> None:
        self._up.set()
        self._reconnected_at = time.monotonic() if again else None
        self.refused.clear()
        log.info("nats.up", link=self._name, again=again)
        for listener in self._on_reconnect if again else ():
            listener()

    def _mark_down(self) -> None:
        """Mark the connection as down and fail open requests, because their replies cannot arrive any more."""
        if self.is_up:
            log.warning("nats.down", link=self._name)
        self._up.clear()
        self._requests.fail_all()


async def connect_control(
    url: str,
    issuer: CredentialIssuer,
    *,
    name: str,
    keys: NodeKeys | None = None,
    lifetime: timedelta = timedelta(hours=24),
    connect_within: float = 5.0,
    tls: ssl.SSLContext | None = None,
) -> Bus:
    """Connect the control plane; returns after `connect_within` seconds even if NATS is down, and keeps retrying."""
    newest = partial(issuer.control_credential, lifetime)
    signatures = Signatures(keys) if keys is not None else None
    bus = Bus(url, newest, name=name, signatures=signatures, tls=tls, peers_return_s=NODES_RETURN_S)
    bus.start()
    await bus.wait_up(connect_within)
    return bus


def node_bus(
    url: str,
    node_id: str,
    credentials: Credentials,
    *,
    signs: bool = True,
    ping_interval: int = PING_INTERVAL,
    tls: ssl.SSLContext | None = None,
) -> Bus:
    """Create the bus of a node, not started yet. A LocalAI worker does not sign."""
    signer = ReportSigner(credentials) if signs else None
    return Bus(
        url,
        credentials,
        name=f"node-{node_id}",
        sends_requests=False,
        signer=signer,
        ping_interval=ping_interval,
        tls=tls,
    )


def _tls_options(url: str, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """Return TLS options for a tls:// address; the handshake comes first, so no proxy can downgrade the connection."""
    if not url.startswith("tls://"):
        return {}
    return {"tls": tls or ssl.create_default_context(), "tls_handshake_first": True}


def _next_reconnect(servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
    """Choose the next server and its delay: exponential back-off with jitter, so that nodes spread out."""
    server = min(servers, key=lambda each: each.reconnects)
    longest = min(_LONGEST_RECONNECT_S, _FIRST_RECONNECT_S * 2 ** min(server.reconnects, 10))
    return server, random.uniform(longest / 4, longest)  # noqa: S311 - jitter, no secret


def _setter(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def closed() -> None:
        event.set()

    return closed
