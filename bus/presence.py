"""Who is there: the control plane asks for one process of a node by its boot, and tells one to stop."""

import structlog
from nats.aio.msg import Msg

from bus.connection import Bus
from contracts import subjects
from contracts.messages import BootQuestion, BootReply, StopBackend, StopOrder
from domain.errors import NoAnswer, NodeAway

log = structlog.stdlib.get_logger(__name__)

ANSWER_S = 2.0


class Presence:
    """The control plane's end."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def is_there(self, node_id: str, boot_id: str) -> bool:
        """Does the process of that boot answer? Of two that share an identity, only that one does."""
        question = BootQuestion(boot_id=boot_id)
        try:
            await self._bus.request(subjects.boot(node_id), question.encode(), within=ANSWER_S)
        except (NodeAway, NoAnswer):
            return False
        return True

    async def stop(self, node_id: str, order: StopOrder) -> None:
        """Best effort: a node that does not hear it is told again when it is heard."""
        await self._bus.publish(subjects.stop_node(node_id), order.encode())

    async def stop_backend(self, node_id: str, order: StopBackend) -> bool:
        """Fire and forget, as LocalAI does it; False when our own link is down."""
        return await self._bus.publish(subjects.stop_backend(node_id), order.encode())


async def answer_for(bus: Bus, node_id: str, boot_id: str) -> None:
    """The node's end: say that this boot is there, and nothing for any other."""

    async def answer(message: Msg) -> None:
        try:
            asked = BootQuestion.decode(message.data).boot_id
        except ValueError:
            log.warning("nats.unreadable", subject=message.subject, bytes=len(message.data))
            return
        if asked == boot_id and message.reply:
            await bus.publish(message.reply, BootReply(boot_id=boot_id).encode())

    await bus.subscribe(subjects.boot(node_id), answer)
