"""Duplicate identities: of two processes that claim one node, the first remains the node and the other is stopped."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog

from nodesmith.contracts.nats.presence import Heartbeat, StopOrder, StopWhy
from nodesmith.domain.node import ReportingNode

log = structlog.get_logger()


class Presence(Protocol):
    """The processes of a node, as seen over NATS."""

    async def is_alive(self, node_id: str, boot_id: str) -> bool: ...
    async def stop(self, node_id: str, order: StopOrder) -> None: ...


class IdentityClaims(Protocol):
    """Records which process is a node, and which credentials were retired."""

    async def adopt(self, node_id: str, *, boot_id: str, instead_of: str) -> None: ...
    async def record_rival(self, node_id: str, *, now: datetime) -> None: ...
    async def why_retired(self, credential_hash: str) -> StopWhy | None: ...
    async def removed_among(self, node_ids: Sequence[str]) -> Sequence[str]: ...


@dataclass(frozen=True)
class DuplicateIdentities:
    """Handles heartbeats whose sender is not the registered process of its node."""

    claims: IdentityClaims
    presence: Presence

    async def answer(self, beats: Sequence[Heartbeat], known: Sequence[ReportingNode], now: datetime) -> None:
        registered = {node.node_id: node for node in known}
        unknown = [beat for beat in beats if beat.node_id not in registered]
        others = [beat for beat in beats if (node := registered.get(beat.node_id)) and not _is_registered(beat, node)]
        await self._stop_unknown(unknown)
        await asyncio.gather(*(self._resolve_conflict(beat, registered[beat.node_id], now) for beat in others))

    async def _stop_unknown(self, beats: Sequence[Heartbeat]) -> None:
        """Stop removed nodes for good; an unknown node (the registry was restored) gets the order to register again."""
        if not beats:
            return
        removed = set(await self.claims.removed_among([beat.node_id for beat in beats]))
        for beat in beats:
            why = StopWhy.REMOVED if beat.node_id in removed else StopWhy.NOT_KNOWN
            await self._stop(beat, why)

    async def _resolve_conflict(self, beat: Heartbeat, node: ReportingNode, now: datetime) -> None:
        """Stop the sender, or adopt it when the registered process no longer answers.

        A pending node sends no heartbeats, so an unapproved sender lost its credential.
        """
        if not node.is_approved:
            await self._stop(beat, StopWhy.CREDENTIAL_RESET)
        elif await self.presence.is_alive(node.node_id, node.boot_id):
            await self.claims.record_rival(node.node_id, now=now)
            await self._stop(beat, StopWhy.IDENTITY_IN_USE)
        elif beat.at is not None and node.beat_at is not None and beat.at <= node.beat_at:
            log.warning("node.heartbeat_repeated", node_id=node.node_id, boot_id=beat.boot_id)
        else:
            log.info("node.restarted_unregistered", node_id=node.node_id, boot_id=beat.boot_id)
            await self.claims.adopt(node.node_id, boot_id=beat.boot_id, instead_of=node.boot_id)

    async def _stop(self, beat: Heartbeat, why: StopWhy) -> None:
        log.warning("node.told_to_stop", node_id=beat.node_id, boot_id=beat.boot_id, why=why)
        await self.presence.stop(beat.node_id, StopOrder(why=why, boot_id=beat.boot_id))


def _is_registered(beat: Heartbeat, node: ReportingNode) -> bool:
    return node.is_approved and beat.boot_id in ("", node.boot_id)
