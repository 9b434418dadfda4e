"""Messages to one process of a node: check that it is alive by its boot id, stop it, announce a trust list."""

from collections.abc import Callable

import structlog
from nats.aio.msg import Msg

from nodesmith.bus.commands import ask_node
from nodesmith.bus.connection import Bus
from nodesmith.bus.signing import Signed
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import StopBackend
from nodesmith.contracts.nats.presence import BootQuestion, BootReply, StopOrder
from nodesmith.contracts.nats.wire import Signed as SignedRequest
from nodesmith.domain.errors import NoAnswer, NodeAway

log = structlog.stdlib.get_logger(__name__)

ANSWER_TIMEOUT_S = 2.0
STOP_BACKEND = "backend.stop"

Seal = Callable[[str, str, str], SignedRequest]
"""node, action and message -> the signed request"""


class Presence:
    """The control plane's client."""

    def __init__(self, bus: Bus, seal: Seal | None = None) -> None:
        """`seal` signs backend stops; without it only LocalAI workers accept them."""
        self._bus = bus
        self._seal = seal

    async def is_alive(self, node_id: str, boot_id: str) -> bool:
        """Whether the process with that boot id answers; of two processes with one identity, only that one does."""
        question = BootQuestion(boot_id=boot_id)
        try:
            await ask_node(self._bus, subjects.boot(node_id), question, BootReply, ANSWER_TIMEOUT_S)
        except (NodeAway, NoAnswer):
            return False
        return True

    async def stop(self, node_id: str, order: StopOrder) -> None:
        """Tell the node to stop, without a delivery guarantee; it is told again at its next heartbeat."""
        await self._bus.publish(subjects.stop_node(node_id), order.encode())

    async def announce_trust_list(self, node_id: str) -> bool:
        """Tell the node to fetch a newer trust list from an API; unsigned, because the message has no content."""
        return await self._bus.publish(subjects.trust(node_id), b"")

    async def stop_backend(self, node_id: str, order: StopBackend) -> bool:
        """Stop a backend without waiting for a reply, as LocalAI does; False when our own connection is down."""
        if self._seal is not None:
            order = order.model_copy(update={"signed": self._seal(node_id, STOP_BACKEND, order.encode().decode())})
        return await self._bus.publish(subjects.stop_backend(node_id), order.encode())


async def answer_presence(bus: Bus, node_id: str, boot_id: str) -> None:
    """Answer presence requests of the node for this boot id, and none for another."""

    async def answer(message: Msg) -> None:
        try:
            wanted = BootQuestion.decode(message.data).boot_id
        except ValueError:
            log.warning("nats.unreadable", subject=message.subject, bytes=len(message.data))
            return
        if wanted == boot_id and message.reply:
            payload = BootReply(boot_id=boot_id).encode()
            await bus.publish(message.reply, bus.seal(Signed.REPLY, message.reply, payload))

    await bus.subscribe(subjects.boot(node_id), answer)


async def subscribe_trust_list(bus: Bus, node_id: str, on_announced: Callable[[], None]) -> None:
    """Call `on_announced` when the control plane announces a newer trust list."""

    async def receive(_message: Msg) -> None:
        on_announced()

    await bus.subscribe(subjects.trust(node_id), receive)
