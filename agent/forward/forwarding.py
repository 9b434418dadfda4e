"""Keeps the forwarder running while this node has replicas, and tells it which of them are ready."""

import asyncio
from collections.abc import Callable

import structlog

from nodesmith.agent.first_ended import run_until_first
from nodesmith.agent.forward.certificate import NodeCertificate
from nodesmith.agent.forward.control import ForwarderAway
from nodesmith.agent.forward.program import ForwarderProgram, ForwarderRules
from nodesmith.agent.run.backend_process import ProcessRecord
from nodesmith.agent.run.supervisor import Supervisor
from nodesmith.domain.forwarding import forwarded

log = structlog.stdlib.get_logger(__name__)

_EVERY_S = 5.0
_PATIENCE_S = 30.0
_PAUSE_S = 0.2
"""between two starts of a forwarder that ends at once"""


class Forwarding:
    """The addresses of replicas behind the forwarder. Without a certificate they are those of the backends."""

    def __init__(
        self, rules: ForwarderRules, certificate: NodeCertificate, supervisor: Supervisor, node_id: Callable[[], str]
    ) -> None:
        self._program = ForwarderProgram(rules, certificate)
        self._certificate = certificate
        self._supervisor = supervisor
        self._node_id = node_id
        self._address = ""
        """where gateways reach the forwarder; empty until it runs"""
        self._told: dict[str, str] = {}
        self._told_certificate = 0
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._syncing: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Adopt the forwarder of an earlier agent; call it when the replicas have been adopted."""
        await self._program.adopt()
        await self.sync()
        self._running = asyncio.create_task(self._run(), name="forwarding")

    def wake(self) -> None:
        """A replica got ready or ended, or the certificate changed."""
        self._wake.set()

    def address_of(self, record: ProcessRecord) -> str:
        return forwarded(self._address) if self._address and record.load is not None else record.address

    async def sync(self, within: float = _PATIENCE_S) -> None:
        """Lead to exactly the replicas that are ready. What fails is logged, and tried again soon.

        It goes on in the background after `within` seconds, or when the caller is cancelled.
        """
        task = asyncio.create_task(self._sync_once())
        self._syncing.add(task)
        task.add_done_callback(self._syncing.discard)
        await asyncio.wait([task], timeout=within)

    async def _sync_once(self) -> None:
        async with self._lock:
            try:
                await self._sync()
            except (ForwarderAway, OSError) as error:
                log.warning("forward.not_in_sync", error=str(error))

    async def drain(self, key: str) -> None:
        async with self._lock:
            if self._told.pop(key, None) is None:
                return
            try:
                await self._program.client.drain(key)
            except ForwarderAway as error:
                log.warning("forward.not_drained", key=key, error=str(error))

    async def stop(self) -> None:
        """Stop the forwarder, after the backends; it is started again with the next replica."""
        async with self._lock:
            await self._switch_off()

    def detach(self) -> None:
        """Stop watching; the forwarder keeps running."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await self.sync()
            await run_until_first(self._program.wait_ended(), self._wake.wait(), asyncio.sleep(_EVERY_S))
            await asyncio.sleep(_PAUSE_S)

    async def _sync(self) -> None:
        node_id = self._node_id()
        if not node_id or not await asyncio.to_thread(self._certificate.is_for, node_id):
            await self._switch_off()
            return
        ready = self._ready()
        if not ready and not self._program.is_running:
            return
        if await self._program.ensure(node_id):
            self._told, self._told_certificate = {}, self._certificate.changed_at()
        self._address = _address(self._program)
        await self._tell(ready)
        await asyncio.to_thread(self._program.rotate_log)

    async def _tell(self, ready: dict[str, str]) -> None:
        client = self._program.client
        if (changed_at := self._certificate.changed_at()) != self._told_certificate:
            await client.reload()
            self._told_certificate = changed_at
        known = set(await client.keys())
        for key, address in ready.items():
            if key not in known or self._told.get(key) != address:
                await client.put(key, address)
        for key in known - set(ready):
            await client.remove(key)
        self._told = ready

    def _ready(self) -> dict[str, str]:
        """Addresses of the backends by process key. The port of one that ended may be another's soon."""
        return {
            keeper.record.key: keeper.record.address
            for keeper in self._supervisor.serving()
            if keeper.record.load is not None and keeper.is_ready
        }

    async def _switch_off(self) -> None:
        await self._program.stop()
        self._address, self._told = "", {}


def _address(program: ForwarderProgram) -> str:
    record = program.record
    if record is None:
        return ""
    host = f"[{record.host}]" if ":" in record.host else record.host
    return f"{host}:{record.port}"
