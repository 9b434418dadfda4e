"""Ensures that all API replicas of an installation share one root key, because all nodes must trust what each signs."""

from dataclasses import dataclass
from typing import Protocol

import structlog

from nodesmith.contracts.nats.orders import TrustChain
from nodesmith.domain.errors import ForeignRoot, ServiceUnavailable
from nodesmith.domain.trust_lists import Compared, Relation

log = structlog.stdlib.get_logger(__name__)

_TRIES = 5


class Keys(Protocol):
    """The keys of this replica."""

    def chain(self) -> TrustChain: ...
    def compared(self, recorded: TrustChain) -> Compared: ...


class Record(Protocol):
    """The trust lists of the installation, stored in PostgreSQL."""

    async def load(self) -> TrustChain | None: ...
    async def replace(self, old: TrustChain | None, new: TrustChain) -> bool: ...


@dataclass(frozen=True)
class RootGuard:
    """Compares the trust lists of this replica with those of the installation."""

    keys: Keys
    record: Record
    new_root: str = ""
    """fingerprint of the root key with which an admin replaces a lost one"""

    async def check(self) -> None:
        """Record our lists if they extend the recorded ones; raises `ForeignRoot` if the two chains differ."""
        for _ in range(_TRIES):
            own, recorded = self.keys.chain(), await self.record.load()
            if recorded is not None and not self._replaces(self.keys.compared(recorded)):
                return
            if await self.record.replace(recorded, own):
                log.info("keys.recorded", lists=len(own.lists))
                return
        raise ServiceUnavailable("Other replicas are recording their keys at the same time; start this one again.")

    def _replaces(self, compared: Compared) -> bool:
        """Whether the lists of this replica replace the recorded ones."""
        if compared.relation is Relation.OLDER:
            log.warning("keys.older_list", version=compared.version, newest=compared.recorded_version, remedy=_COPY)
        if compared.relation is Relation.FOREIGN and self.new_root != compared.root:
            raise ForeignRoot(_foreign(compared))
        return compared.relation in (Relation.NEWER, Relation.FOREIGN)


_COPY = "Give this API the folder NODESMITH_ORDER_KEYS of the other replicas."


def _foreign(compared: Compared) -> str:
    if compared.root == compared.recorded_root:
        return (
            f"Two API replicas have replaced their keys separately: their trust lists differ, and nodes follow only "
            f"one of them. {_COPY}"
        )
    return (
        f"The root key of this API is {compared.root}, and the one of this installation, which its nodes trust, is "
        f"{compared.recorded_root}. {_COPY} Only if that root key is lost: start with "
        f"NODESMITH_NEW_ROOT={compared.root}, and let every node join again."
    )
