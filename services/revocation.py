"""A node that was removed or lost its credential loses its voice on the bus too, at once and for good."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog

from domain.errors import NodesmithError

log = structlog.stdlib.get_logger(__name__)

LAST_WORDS_S = 10.0
"""how long a node that is told to stop its work may still be told"""
ASK_AGAIN_S = 0.2
TRY_AGAIN_S = 1.0


class TakenBack(Protocol):
    """The credentials that were taken back and did not end by themselves yet."""

    def revoked(self, now: datetime) -> AbstractAsyncContextManager[Mapping[str, datetime]]: ...


class Account(Protocol):
    """The account of all nodes at the NATS server."""

    async def revoke(self, users: Mapping[str, datetime]) -> None: ...
    async def linked_anew(self) -> None: ...
    def link_again(self) -> None: ...


@dataclass(frozen=True)
class Revocation:
    """Without an account (a NATS server whose keys we do not have) a credential lives until it ends by itself."""

    voices: TakenBack
    account: Account | None
    clock: Callable[[], datetime]
    _parting: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def enforce(self) -> None:
        """Tell the server. What cannot be told now is told as soon as it can be."""
        if self.account is None:
            return
        try:
            async with self.voices.revoked(self.clock()) as users:
                await self.account.revoke(users)
        except NodesmithError as error:
            log.warning("revocation.later", error=str(error))
            self.account.link_again()

    def enforce_after(self, is_told: Callable[[], Awaitable[bool]], then: Callable[[], Awaitable[None]]) -> None:
        """Once the node has been told what it still has to hear, and soon in any case."""
        parting = asyncio.create_task(self._part(is_told, then))
        self._parting.add(parting)
        parting.add_done_callback(self._parting.discard)

    async def keep(self) -> None:
        """Until cancelled: tell the server at each new link, because it may have forgotten."""
        if self.account is None:
            return
        while True:
            await self.account.linked_anew()
            await self.enforce()
            await asyncio.sleep(TRY_AGAIN_S)

    async def _part(self, is_told: Callable[[], Awaitable[bool]], then: Callable[[], Awaitable[None]]) -> None:
        for _ in range(int(LAST_WORDS_S / ASK_AGAIN_S)):
            if await is_told():
                break
            await asyncio.sleep(ASK_AGAIN_S)
        await then()
        await self.enforce()
