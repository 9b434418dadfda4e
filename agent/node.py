"""The agent: registered, linked, beating, and at work when asked."""

import asyncio
import random
import uuid
from importlib import metadata

import httpx2
import structlog

from agent.desk import Desk
from agent.identity import Identity, IdentityFile
from agent.machine import machine_id, resources
from agent.operations import Operations
from agent.racing import first_of, unless
from agent.registration import Registrar, Removed
from agent.retirement import SENTENCES, Retired, Retirement
from agent.settings import AgentSettings
from agent.workshop import Workshop
from bus.commands import serve
from bus.connection import Bus, node_bus
from bus.heartbeats import hear_others, keep_beating
from bus.models import serve_models
from bus.presence import answer_for
from bus.reports import NodeReports
from contracts.messages import Heartbeat, Outcome, StopOrder, StopWhy
from contracts.node_http import RegisterRequest
from domain.node import Protocol
from runtime.trust import trusting

log = structlog.stdlib.get_logger(__name__)

LISTENS = (1.2, 2.2)
"""heartbeats of another process that would be heard before this one begins without the control plane's word"""


class Agent:
    """One node. Everything that lasts lies in its home."""

    def __init__(self, settings: AgentSettings, http: httpx2.AsyncClient) -> None:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings = settings
        self._boot_id = uuid.uuid4().hex
        self._machine_id = machine_id(settings.home)
        self._retirement = Retirement(settings.home)
        self._registrar = Registrar(
            http, IdentityFile(settings.home), token=settings.registration_token(), request=self._registration
        )
        self._workshop = Workshop(settings, http, self._who)
        self._beats = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. A node that was removed stays, idle, so that nothing starts it again for nothing."""
        interrupted = await self._workshop.take_stock()
        try:
            if (retired := self._retirement.load()) is None:
                retired = await self._take_part(interrupted, stop)
            if retired is not None:
                self._retirement.tell(retired)
                await stop.wait()
        finally:
            await self._workshop.close()

    async def _take_part(self, interrupted: list[Outcome], stop: asyncio.Event) -> Retired | None:
        """Registered and linked, again and again, until `stop` or until we were removed."""
        admission = self._registrar.admitted
        while not stop.is_set():
            try:
                admitted = await unless(stop, admission())
                if admitted is None:
                    break
                why = await self._serve_as(admitted[0], interrupted, stop, is_fresh=admitted[1])
            except Removed as word:
                log.warning("registration.removed", error=str(word))
                why = StopWhy.REMOVED
            if why in SENTENCES:
                self._registrar.forget()
                return self._retirement.begin(why)
            interrupted, admission = [], self._ask_anew
        await self._registrar.leave(self._boot_id)
        return None

    async def _ask_anew(self) -> tuple[Identity, bool]:
        """After an order to stop, what is kept is not enough: the control plane has to say yes."""
        return await self._registrar.ask_until_admitted(), True

    async def _serve_as(
        self, identity: Identity, interrupted: list[Outcome], stop: asyncio.Event, *, is_fresh: bool
    ) -> StopWhy:
        """Linked as this node until `stop`, an order that is meant for us, or until we are another one."""
        orders: asyncio.Queue[StopOrder] = asyncio.Queue()
        bus = node_bus(
            identity.nats_url, identity.node_id, self._registrar.nats_credential, tls=trusting(self._settings.ca_file)
        )
        operations = Operations(
            self._workshop.journal,
            self._workshop.installer,
            NodeReports(bus, identity.node_id),
            progress_every=self._settings.progress_interval.total_seconds(),
            journal_every=self._settings.journal_interval.total_seconds(),
        )
        models = self._workshop.models
        try:
            if not is_fresh and not await unless(stop, self._may_begin(bus, identity, orders)):
                return StopWhy.IDENTITY_IN_USE
            await serve(bus, identity.node_id, Desk(operations, self._workshop.installer, models, orders.put_nowait))
            await serve_models(bus, identity.node_id, models)
            await answer_for(bus, identity.node_id, self._boot_id)
            if is_fresh:
                bus.start()
            for outcome in interrupted:
                operations.say(outcome)
            return await self._attend(bus, identity, operations, orders, stop, is_fresh=is_fresh)
        finally:
            await operations.close()
            await bus.close()

    async def _may_begin(self, bus: Bus, identity: Identity, orders: "asyncio.Queue[StopOrder]") -> bool:
        """The control plane is away and cannot say who is the node: whoever beats as it was there first.

        Of two copies that start together one listens longer than the other and hears it; should both begin in the
        same moment, the greater boot gives way.
        """
        heard = asyncio.Event()

        def note(other: str) -> None:
            heard.set()
            is_confirmed = self._registrar.identity is not identity
            if other < self._boot_id and not is_confirmed:
                orders.put_nowait(StopOrder(why=StopWhy.IDENTITY_IN_USE, boot_id=self._boot_id))

        await hear_others(bus, identity.node_id, self._boot_id, note)
        bus.start()
        confirming = asyncio.ensure_future(self._registrar.confirmed())
        await first_of(self._silence(bus), heard.wait(), confirming)
        if heard.is_set():
            log.warning("agent.another_is_there", node_id=identity.node_id)
            return False
        return confirming.cancelled() or (confirming.result() and self._who()[0] == identity.node_id)

    async def _silence(self, bus: Bus) -> None:
        await bus.wait_up()
        every = self._settings.heartbeat_interval.total_seconds()
        await asyncio.sleep(every * random.uniform(*LISTENS))  # noqa: S311 - jitter, no secret

    async def _attend(
        self,
        bus: Bus,
        identity: Identity,
        operations: Operations,
        orders: "asyncio.Queue[StopOrder]",
        stop: asyncio.Event,
        *,
        is_fresh: bool,
    ) -> StopWhy:
        """Heartbeats and renewals, until `stop`, an order or another id; a loop that breaks ends the agent."""

        async def beat() -> Heartbeat:
            return await self._heartbeat(identity.node_id, operations)

        obeying = asyncio.ensure_future(self._meant_for_us(orders))
        await first_of(
            stop.wait(),
            obeying,
            keep_beating(bus, beat, every=self._settings.heartbeat_interval.total_seconds()),
            self._registrar.keep_linked(bus, at_once=not is_fresh),
            self._workshop.keep_tidy(),
        )
        if obeying.cancelled():
            return StopWhy.UNKNOWN
        why = obeying.result()
        if why in (StopWhy.ASKED, StopWhy.UNKNOWN, *SENTENCES):
            await self._workshop.stop_backends()
        if why in (StopWhy.ASKED, StopWhy.UNKNOWN):
            stop.set()
        return why

    async def _meant_for_us(self, orders: "asyncio.Queue[StopOrder]") -> StopWhy:
        """The next order that is not for another process of this node."""
        while True:
            order = await orders.get()
            if order.boot_id in ("", self._boot_id):
                log.warning("stop.ordered", why=order.why)
                return order.why

    def _who(self) -> tuple[str, str]:
        identity = self._registrar.identity
        return (identity.node_id, identity.api_token) if identity else ("", "")

    def _registration(self) -> RegisterRequest:
        has = resources(self._settings.home)
        return RegisterRequest(
            **has.model_dump(exclude_none=True),
            name=self._settings.name,
            protocol=Protocol.NODESMITH,
            machine_id=self._machine_id,
            boot_id=self._boot_id,
            agent_version=metadata.version("nodesmith"),
        )

    async def _heartbeat(self, node_id: str, operations: Operations) -> Heartbeat:
        self._beats += 1
        return Heartbeat(
            node_id=node_id,
            boot_id=self._boot_id,
            seq=self._beats,
            open_ops=operations.open_ops(),
            resources=await asyncio.to_thread(resources, self._settings.home),
        )
