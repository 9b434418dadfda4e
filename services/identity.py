"""One node, one process: of two that show the same identity, the one that was first acts and the other is told."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog

from contracts.messages import Heartbeat, StopOrder, StopWhy
from domain.node import HeardNode

log = structlog.get_logger()


class Presence(Protocol):
    """The processes of a node, on the bus."""

    async def is_there(self, node_id: str, boot_id: str) -> bool: ...
    async def stop(self, node_id: str, order: StopOrder) -> None: ...


class Claims(Protocol):
    """Who claimed to be a node, and who may not any more."""

    async def adopt(self, node_id: str, *, boot_id: str, instead_of: str) -> None: ...
    async def rival(self, node_id: str, *, now: datetime) -> None: ...
    async def why_retired(self, credential_hash: str) -> StopWhy | None: ...
    async def removed_among(self, node_ids: Sequence[str]) -> Sequence[str]: ...


@dataclass(frozen=True)
class Impostors:
    """Heartbeats that are not those of a node as it registered."""

    claims: Claims
    presence: Presence

    async def answer(self, beats: Sequence[Heartbeat], known: Sequence[HeardNode], now: datetime) -> None:
        registered = {node.node_id: node for node in known}
        strangers = [beat for beat in beats if beat.node_id not in registered]
        others = [beat for beat in beats if (node := registered.get(beat.node_id)) and not _is_it(beat, node)]
        await self._answer_strangers(strangers)
        await asyncio.gather(*(self._answer_other(beat, registered[beat.node_id], now) for beat in others))

    async def _answer_strangers(self, beats: Sequence[Heartbeat]) -> None:
        """A node that was removed retires; one that nobody ever knew (a restored registry) registers again."""
        if not beats:
            return
        removed = set(await self.claims.removed_among([beat.node_id for beat in beats]))
        for beat in beats:
            why = StopWhy.REMOVED if beat.node_id in removed else StopWhy.NOT_KNOWN
            await self._stop(beat, why)

    async def _answer_other(self, beat: Heartbeat, node: HeardNode, now: datetime) -> None:
        """Pending nodes have no voice: this one lost its approval with its credential."""
        if not node.is_approved:
            await self._stop(beat, StopWhy.CREDENTIAL_RESET)
        elif await self.presence.is_there(node.node_id, node.boot_id):
            await self.claims.rival(node.node_id, now=now)
            await self._stop(beat, StopWhy.IDENTITY_IN_USE)
        else:
            log.info("node.restarted_unregistered", node_id=node.node_id, boot_id=beat.boot_id)
            await self.claims.adopt(node.node_id, boot_id=beat.boot_id, instead_of=node.boot_id)

    async def _stop(self, beat: Heartbeat, why: StopWhy) -> None:
        log.warning("node.told_to_stop", node_id=beat.node_id, boot_id=beat.boot_id, why=why)
        await self.presence.stop(beat.node_id, StopOrder(why=why, boot_id=beat.boot_id))


def _is_it(beat: Heartbeat, node: HeardNode) -> bool:
    return node.is_approved and beat.boot_id in ("", node.boot_id)
