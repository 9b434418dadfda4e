"""Heartbeats: sent by each node, collected by one control-plane process and delivered in batches."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable

import structlog
from nats.aio.msg import Msg

from nodesmith.bus.connection import Bus
from nodesmith.bus.signed_messages import Signed, unverified
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.errors import BadSignature, NodesmithError

log = structlog.stdlib.get_logger(__name__)

HeartbeatHandler = Callable[[list[Heartbeat]], Awaitable[None]]

MIN_PAUSE_S = 0.2
"""between two heartbeats: news that come together are told together"""
MOST_UNVERIFIED = 4
"""unverified heartbeats kept per node; older ones are dropped"""
VERIFIED_PER_YIELD = 100
"""nodes to verify before yielding to other tasks; each takes about 80 microseconds"""


async def send_heartbeats(
    bus: Bus, beat: Callable[[], Awaitable[Heartbeat]], *, every: float, news: asyncio.Event | None = None
) -> None:
    """Send a node's heartbeats until cancelled: at once, after each reconnect or news, and every `every` seconds."""
    due = news or asyncio.Event()
    bus.on_reconnect(due.set)
    while True:
        await bus.wait_up()
        due.clear()
        heartbeat = await beat()
        envelope = bus.seal(Signed.HEARTBEAT, heartbeat.node_id, heartbeat.encode())
        await bus.publish(subjects.heartbeat(heartbeat.node_id), envelope)
        if await _is_set_within(due, every * random.uniform(0.9, 1.0)):  # noqa: S311 - jitter, no secret
            await asyncio.sleep(min(MIN_PAUSE_S, every))


async def watch_for_duplicates(bus: Bus, node_id: str, boot_id: str, on_duplicate: Callable[[str], None]) -> None:
    """Call `on_duplicate` with the boot id of another process that sends heartbeats as this node."""

    async def listen(message: Msg) -> None:
        with contextlib.suppress(ValueError):
            other = Heartbeat.decode(unverified(message.data)).boot_id
            if other != boot_id:
                on_duplicate(other)

    await bus.subscribe(subjects.heartbeat(node_id), listen)


class HeartbeatSink:
    """Collects the newest heartbeat of each node and passes them to `take` every `every` seconds.

    While the connection is up, `take` is called even with an empty list, to show that the sink is listening.
    """

    def __init__(self, bus: Bus, take: HeartbeatHandler, *, every: float = 1.0) -> None:
        self._bus = bus
        self._take = take
        self._every = every
        self._received: dict[str, deque[bytes]] = {}
        self._newest: dict[str, Heartbeat] = {}
        self._has_received = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until `stop`, then deliver what is left."""
        await self._bus.subscribe(subjects.EVERY_HEARTBEAT, self._on_heartbeat, queue=subjects.HEARTBEAT_SINKS)
        # After a quiet time the first heartbeat is delivered at once, and those that follow after a short pause.
        shortest = pause = self._every / 16
        while not stop.is_set():
            has_pending = bool(self._received or self._newest)
            await self._deliver()
            quiet = not await _is_set_within(
                stop if has_pending else self._has_received, pause if has_pending else self._every
            )
            if has_pending:
                pause = min(2 * pause, self._every)
            elif quiet:
                pause = shortest
            self._has_received.clear()
        await self._deliver()

    async def _deliver(self) -> None:
        if not self._bus.is_up and not self._received and not self._newest:
            return
        try:
            await self._verify()
        except Exception:
            log.exception("heartbeats.not_verified", nodes=len(self._received))
            return
        batch = list(self._newest.values())
        self._newest.clear()
        try:
            await self._take(batch)
        except NodesmithError as error:  # a server is away
            log.warning("heartbeats.not_taken", nodes=len(batch), error=error.message)
            self._newest = {each.node_id: each for each in batch} | self._newest
        except Exception:
            log.exception("heartbeats.not_taken", nodes=len(batch))
            await self._take_singly(batch)

    async def _take_singly(self, batch: list[Heartbeat]) -> None:
        """Deliver one by one after an unexpected error, so that what one node sent costs no other its heartbeat."""
        for heartbeat in batch:
            try:
                await self._take([heartbeat])
            except Exception:
                log.exception("heartbeat.dropped", node_id=heartbeat.node_id)

    async def _on_heartbeat(self, message: Msg) -> None:
        self._received.setdefault(subjects.node_of(message.subject), deque(maxlen=MOST_UNVERIFIED)).append(message.data)
        self._has_received.set()

    async def _verify(self) -> None:
        """Load all keys at once, then verify; heartbeats that arrive meanwhile wait for the next round."""
        await self._bus.signatures.load(list(self._received))
        received, self._received = self._received, {}
        for number, (node_id, envelopes) in enumerate(received.items(), start=1):
            for envelope in envelopes:
                if (heartbeat := await self._verify_one(node_id, envelope)) is not None:
                    self._newest[node_id] = heartbeat
            if number % VERIFIED_PER_YIELD == 0:
                await asyncio.sleep(0)

    async def _verify_one(self, node_id: str, envelope: bytes) -> Heartbeat | None:
        """Verify a heartbeat. One without a registered key is passed on unverified: it only gets the node a refusal."""
        signatures = self._bus.signatures
        try:
            payload = (
                await signatures.open(node_id, Signed.HEARTBEAT, node_id, envelope)
                if signatures.has_key(node_id)
                else unverified(envelope)
            )
            heartbeat = Heartbeat.decode(payload)
        except BadSignature:
            return None
        except ValueError:
            log.warning("nats.unreadable", node_id=node_id, bytes=len(envelope))
            return None
        if subjects.token(heartbeat.node_id) != node_id:
            log.warning("nats.foreign", subject=subjects.heartbeat(node_id), node_id=heartbeat.node_id)
            return None
        return heartbeat


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        return await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
