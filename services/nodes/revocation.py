"""Revocation: the NATS server rejects the credentials of removed and reset nodes, immediately and permanently."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog

from nodesmith.domain.errors import NodesmithError

log = structlog.stdlib.get_logger(__name__)

DISCONNECT_TIMEOUT_S = 10.0
"""how long a removed node may stay connected to receive its cancels"""
POLL_INTERVAL_S = 0.2
RETRY_INTERVAL_S = 1.0


class RevokedCredentials(Protocol):
    """Revoked credentials that have not expired yet."""

    def revoked(self, now: datetime) -> AbstractAsyncContextManager[Mapping[str, datetime]]: ...


class NatsAccount(Protocol):
    """The NATS account of all nodes."""

    async def revoke(self, users: Mapping[str, datetime]) -> None: ...
    async def wait_for_new_link(self) -> None: ...
    def mark_link_as_new(self) -> None: ...


@dataclass(frozen=True)
class Revocation:
    """Without an account (a NATS server whose keys are not ours) a credential stays valid until it expires."""

    credentials: RevokedCredentials
    account: NatsAccount | None
    clock: Callable[[], datetime]
    _disconnecting: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def enforce(self) -> None:
        """Send the revoked credentials to the server; on failure retry with the next connection."""
        if self.account is None:
            return
        try:
            async with self.credentials.revoked(self.clock()) as users:
                await self.account.revoke(users)
        except NodesmithError as error:
            log.warning("revocation.later", error=str(error))
            self.account.mark_link_as_new()

    def enforce_after(self, is_done: Callable[[], Awaitable[bool]], then: Callable[[], Awaitable[None]]) -> None:
        """In the background: wait for `is_done`, at most DISCONNECT_TIMEOUT_S, then call `then` and enforce."""
        task = asyncio.create_task(self._disconnect(is_done, then))
        self._disconnecting.add(task)
        task.add_done_callback(self._disconnecting.discard)

    async def run(self) -> None:
        """Until cancelled: send the revocations at each new connection, because the server may have lost them."""
        if self.account is None:
            return
        while True:
            await self.account.wait_for_new_link()
            await self.enforce()
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def _disconnect(self, is_done: Callable[[], Awaitable[bool]], then: Callable[[], Awaitable[None]]) -> None:
        for _ in range(int(DISCONNECT_TIMEOUT_S / POLL_INTERVAL_S)):
            if await is_done():
                break
            await asyncio.sleep(POLL_INTERVAL_S)
        await then()
        await self.enforce()
