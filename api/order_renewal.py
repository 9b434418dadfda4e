"""Background task of every API replica: renew orders, rotate the signing key, announce new keys to nodes."""

import asyncio
from dataclasses import dataclass

import structlog

from nodesmith.domain.errors import ForeignRoot, NodesmithError
from nodesmith.runtime.keyring import Keyring
from nodesmith.services.access.trust_roots import RootGuard
from nodesmith.services.nodes.trust_lists import TrustListNotifier
from nodesmith.services.operations.orders import OrderRenewals

log = structlog.stdlib.get_logger(__name__)

EVERY_S = 30.0


@dataclass(frozen=True)
class OrderRenewal:
    renewal: OrderRenewals
    keyring: Keyring
    spread: TrustListNotifier
    guard: RootGuard

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.once()
            except NodesmithError as error:
                log.info("orders.not_renewed", error=error.message)

    async def once(self) -> None:
        if renewed := await self.renewal.once():
            log.info("orders.renewed", orders=renewed)
        if self.keyring.is_due():
            trusted = await asyncio.to_thread(self.keyring.rotate)
            log.warning("keys.rotated", kid=self.keyring.signing_kid, version=trusted.version, why="it ends soon")
        if notified := await self.spread.once():
            log.info("trust.notified", nodes=notified, version=self.keyring.version)
        await self._compare_roots()

    async def _compare_roots(self) -> None:
        """Record newer trust lists; warn of a root that was replaced separately before the next start fails."""
        try:
            await self.guard.check()
        except ForeignRoot as error:
            log.warning("keys.foreign_root", error=error.message)
