"""Passwords of sources: given only to a node that has an open operation which fetches from that host."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from nodesmith.contracts.http.sources import SourceAccess
from nodesmith.contracts.nats.orders import Order
from nodesmith.domain.audit_change import AuditChange
from nodesmith.domain.errors import NotAllowed, UnknownSource
from nodesmith.domain.node import Node
from nodesmith.gallery.oci import is_reference, read_reference

ACTION = "sources.hand_out"
_MAX_REMEMBERED = 10_000


class Dispatched(Protocol):
    async def dispatched_to(self, node_id: str) -> Sequence[str]:
        """Ids of operations that are open and were sent to the node."""
        ...


class Orders(Protocol):
    async def read(self, op_id: str) -> Order | None:
        """The order of an operation, if its signature is right."""
        ...


class SourceStore(Protocol):
    async def access(self, host: str) -> SourceAccess | None: ...


class AuditTrail(Protocol):
    async def begin(self, change: AuditChange) -> int: ...
    async def complete(self, entry: int, change: AuditChange) -> None: ...


@dataclass(frozen=True)
class SourceSecrets:
    operations: Dispatched
    orders: Orders
    table: SourceStore
    trail: AuditTrail
    _audited: OrderedDict[tuple[str, str], None] = field(default_factory=OrderedDict)
    """operations and hosts that are recorded in the audit trail"""

    async def hand_out(self, node: Node, host: str) -> SourceAccess:
        """Return the access data of a host; without a matching operation the node does not learn whether any is set."""
        wanted = host.casefold()
        order = await self._find_order(node, wanted)
        if order is None:
            raise NotAllowed(f"No operation that is open on {node.name} fetches from {host}.", host=host)
        found = await self.table.access(host)
        if found is None:
            raise UnknownSource(f"Nothing is set for {host}.", host=host)
        await self._audit(node, order.op_id, wanted)
        return found

    async def _find_order(self, node: Node, host: str) -> Order | None:
        """Find the operation by its signed order; rows and runs are not trusted."""
        for op_id in await self.operations.dispatched_to(node.id):
            order = await self.orders.read(op_id)
            if order is not None and order.node == node.id and host in hosts_of(order):
                return order
        return None

    async def _audit(self, node: Node, op_id: str, host: str) -> None:
        """Write one audit entry per operation and host, however often the node asks."""
        if (op_id, host) in self._audited:
            return
        change = AuditChange(node.name, ACTION, host, after={"node_id": node.id, "op_id": op_id})
        await self.trail.complete(await self.trail.begin(change), change)
        self._audited[op_id, host] = None
        while len(self._audited) > _MAX_REMEMBERED:
            self._audited.popitem(last=False)


def hosts_of(order: Order) -> set[str]:
    """The hosts that an operation fetches from, with their ports, in the form in which nodes ask for them."""
    files = order.load.files if order.load is not None else []
    uris = [uri for uri in (order.uri, *order.mirrors, *(file.uri for file in files)) if uri]
    return {(read_reference(uri).host if is_reference(uri) else _host(uri)).casefold() for uri in uris}


def _host(uri: str) -> str:
    return urlsplit(uri).netloc.rpartition("@")[2]
