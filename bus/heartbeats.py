"""Heartbeats: said by each node, gathered by one process of the control plane and handed on in batches."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import structlog
from nats.aio.msg import Msg

from bus.connection import Bus
from contracts import subjects
from contracts.messages import Heartbeat

log = structlog.stdlib.get_logger(__name__)

Take = Callable[[list[Heartbeat]], Awaitable[None]]


async def keep_beating(bus: Bus, beat: Callable[[], Awaitable[Heartbeat]], *, every: float) -> None:
    """The node's end, until cancelled: one heartbeat at once, at each reconnect, and every `every` seconds."""
    again = asyncio.Event()
    bus.on_reconnect(again.set)
    while True:
        await bus.wait_up()
        again.clear()
        heartbeat = await beat()
        await bus.publish(subjects.heartbeat(heartbeat.node_id), heartbeat.encode())
        await _is_set_within(again, every * random.uniform(0.9, 1.0))  # noqa: S311 - jitter, no secret


async def hear_others(bus: Bus, node_id: str, boot_id: str, heard: Callable[[str], None]) -> None:
    """The node's end: call `heard` with the boot of another process that beats as this node."""

    async def listen(message: Msg) -> None:
        with contextlib.suppress(ValueError):
            other = Heartbeat.decode(message.data).boot_id
            if other != boot_id:
                heard(other)

    await bus.subscribe(subjects.heartbeat(node_id), listen)


class HeartbeatSink:
    """Gathers the newest heartbeat of each node and hands them to `take`, once every `every` seconds.

    While the link is up `take` is called even with an empty list: that the sink listens is news too.
    """

    def __init__(self, bus: Bus, take: Take, *, every: float = 1.0) -> None:
        self._bus = bus
        self._take = take
        self._every = every
        self._gathered: dict[str, Heartbeat] = {}
        self._first = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until `stop`, then hand on what is left."""
        await self._bus.subscribe(subjects.EVERY_HEARTBEAT, self._on_heartbeat, queue=subjects.HEARTBEAT_SINKS)
        # After a quiet while the first is handed on at once, and those who come with it soon after.
        soon = pause = self._every / 16
        while not stop.is_set():
            heard = bool(self._gathered)
            await self._hand_on()
            quiet = not await _is_set_within(stop if heard else self._first, pause if heard else self._every)
            if heard:
                pause = min(2 * pause, self._every)
            elif quiet:
                pause = soon
            self._first.clear()
        await self._hand_on()

    async def _hand_on(self) -> None:
        if not self._bus.is_up and not self._gathered:
            return
        batch = list(self._gathered.values())
        self._gathered.clear()
        try:
            await self._take(batch)
        except Exception:
            log.exception("heartbeats.not_taken", nodes=len(batch))
            self._gathered = {each.node_id: each for each in batch} | self._gathered

    async def _on_heartbeat(self, message: Msg) -> None:
        try:
            heartbeat = Heartbeat.decode(message.data)
        except ValueError:
            log.warning("nats.unreadable", subject=message.subject, bytes=len(message.data))
            return
        if subjects.heartbeat(heartbeat.node_id) != message.subject:
            log.warning("nats.foreign", subject=message.subject, node_id=heartbeat.node_id)
            return
        self._gathered[heartbeat.node_id] = heartbeat
        self._first.set()


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        return await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
