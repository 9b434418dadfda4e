"""Orders: the only place that signs admitted operations; nodes execute signed orders only."""

import asyncio
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from nodesmith.contracts.nats.loads import LoadOrder
from nodesmith.contracts.nats.orders import Order
from nodesmith.contracts.nats.wire import Signed
from nodesmith.contracts.temporal.locks import lock_of
from nodesmith.contracts.temporal.operations import Intent, OperationRequest, Projection
from nodesmith.domain.errors import NodesmithError, OrderNotSigned, ServiceUnavailable
from nodesmith.domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)

LIFETIME = timedelta(hours=24)
RENEW_LIMIT = 500
SIGN_CHUNK = 500
"""per thread call, so that the event loop stays responsive"""
_MILLISECOND = timedelta(milliseconds=1)
_TRIES = 5


class OrderSigner(Protocol):
    """The control plane's keys. `read` raises `OrderNotSigned`."""

    def sign(self, order: Order) -> Signed: ...
    def read(self, signed: Signed) -> Order: ...


class OrderTable(Protocol):
    async def insert(self, orders: Sequence[tuple[Order, Signed]]) -> set[str]: ...
    async def find(self, op_id: str) -> Signed | None: ...
    async def find_all(self, op_ids: Sequence[str]) -> Sequence[Signed]: ...
    async def known_among(self, op_ids: Sequence[str]) -> set[str]: ...
    async def newest(self, lock: str, node_ids: Sequence[str]) -> dict[str, int]: ...
    async def ending(self, before: int, *, limit: int) -> Sequence[tuple[Signed, str, str]]: ...
    async def renew(self, old: Signed, order: Order, signed: Signed) -> bool: ...


class Admitted(Protocol):
    """Writes the row of an operation together with its order."""

    async def insert_admitted(self, first: Projection, order: Order, signed: Signed) -> bool: ...


class OperationWaker(Protocol):
    async def node_back(self, workflow_id: str, node_id: str) -> None: ...


@dataclass(frozen=True)
class Orders:
    """Signs admitted operations. Each order is newer than all earlier ones for the same node and lock."""

    signer: OrderSigner
    table: OrderTable
    operations: Admitted
    clock: Callable[[], datetime]
    lifetime: timedelta = LIFETIME

    async def admit(self, first: Projection, load: LoadOrder | None = None) -> None:
        """Write the row and its order in one statement, or in two if another replica's clock is ahead."""
        request = first.request
        order = self._order(request, since=0, load=load)
        if not await self.operations.insert_admitted(first, order, self.signer.sign(order)):
            await self.add([request], load)

    async def add(self, requests: Sequence[OperationRequest], load: LoadOrder | None = None) -> None:
        """Write orders without rows, for the members of a batch; repeats those that were not the newest."""
        missing = {request.op_id: request for request in requests}
        for _ in range(_TRIES):
            for op_id in await self.table.known_among(list(missing)):
                del missing[op_id]
            if not missing:
                return
            await self.table.insert(await self._signed(list(missing.values()), load))
        raise ServiceUnavailable(
            "The order could not be written: its operation ended meanwhile, or too many requests name this backend at"
            " once. Nothing was sent to the node; try again."
        )

    async def read(self, op_id: str) -> Order | None:
        """The order of an operation, None if there is none; `OrderNotSigned` if no trusted key signed it."""
        signed = await self.table.find(op_id)
        return self._read(signed, {op_id}) if signed is not None else None

    async def read_all(self, op_ids: Sequence[str]) -> list[Order]:
        """The orders of these operations, without those that no trusted key signed."""
        found: list[Order] = []
        for signed in await self.table.find_all(op_ids):
            with suppress(OrderNotSigned):
                found.append(self._read(signed, op_ids))
        return found

    def _read(self, signed: Signed, op_ids: Container[str]) -> Order:
        """Verify the signature and that the signed op_id is one of these; the column of the row is not trusted."""
        order = self.signer.read(signed)
        if order.op_id not in op_ids:
            raise OrderNotSigned(f"The stored order belongs to operation {order.op_id}.")
        return order

    async def _signed(self, requests: Sequence[OperationRequest], load: LoadOrder | None) -> list[tuple[Order, Signed]]:
        newest: dict[tuple[str, str], int] = {}
        for lock in {lock_of(request.wanted) for request in requests}:
            nodes = [request.node_id for request in requests if lock_of(request.wanted) == lock]
            newest |= {(node, lock): iat for node, iat in (await self.table.newest(lock, nodes)).items()}
        orders = [
            self._order(request, since=newest.get((request.node_id, lock_of(request.wanted)), 0), load=load)
            for request in requests
        ]
        signed: list[tuple[Order, Signed]] = []
        for begin in range(0, len(orders), SIGN_CHUNK):
            signed += await asyncio.to_thread(self._sign_chunk, orders[begin : begin + SIGN_CHUNK])
        return signed

    def _sign_chunk(self, orders: Sequence[Order]) -> list[tuple[Order, Signed]]:
        return [(order, self.signer.sign(order)) for order in orders]

    def _order(self, request: OperationRequest, *, since: int, load: LoadOrder | None) -> Order:
        iat = max(_milliseconds(self.clock()), since + 1)
        return order_of(request, iat=iat, exp=iat + self.lifetime // _MILLISECOND, load=load)


@dataclass(frozen=True)
class OrderRenewals:
    """Renews the orders of open operations before they expire. Every replica runs it; concurrent runs are safe."""

    signer: OrderSigner
    table: OrderTable
    runs: OperationWaker
    clock: Callable[[], datetime]
    lifetime: timedelta = LIFETIME

    async def once(self) -> int:
        """Renew orders in the second half of their lifetime; changes only `exp`, and only of trusted orders."""
        now = _milliseconds(self.clock())
        soon = now + self.lifetime // 2 // _MILLISECOND
        renewed = 0
        for old, workflow_id, reason in await self.table.ending(soon, limit=RENEW_LIMIT):
            renewed += await self._renew(old, workflow_id, reason, now)
        return renewed

    async def _renew(self, old: Signed, workflow_id: str, reason: str, now: int) -> bool:
        try:
            order = self.signer.read(old)
        except OrderNotSigned as error:
            log.warning("order.not_renewed", workflow_id=workflow_id, kid=old.kid, error=error.message)
            return False
        fresh = order.model_copy(update={"exp": now + self.lifetime // _MILLISECOND})
        if not await self.table.renew(old, fresh, self.signer.sign(fresh)):
            return False
        if reason == Reason.ORDER:
            await self._wake(workflow_id, order.node)
        return True

    async def _wake(self, workflow_id: str, node_id: str) -> None:
        """Wake the run; if that fails, it checks again by itself later."""
        try:
            await self.runs.node_back(workflow_id, node_id)
        except NodesmithError as error:
            log.info("order.run_not_woken", workflow_id=workflow_id, error=error.message)


def order_of(request: OperationRequest, *, iat: int, exp: int, load: LoadOrder | None = None) -> Order:
    """The order for one node, with everything that was admitted; `load` may have secrets, so no request has it."""
    wanted = request.wanted
    return Order(
        node=request.node_id,
        op_id=request.op_id,
        kind=wanted.kind,
        family=wanted.family,
        backend=wanted.backend,
        uri=wanted.uri,
        mirrors=list(wanted.mirrors),
        sha256=wanted.sha256,
        size=wanted.size,
        version=wanted.version,
        name=wanted.name,
        alias=wanted.alias,
        model_id=wanted.model,
        replica_index=wanted.replica_index,
        load=load,
        force=wanted.force,
        start=wanted.start,
        policy=wanted.upgrade_policy,
        if_current=request.if_current,
        by=request.requested_by,
        batch=request.batch_id or "",
        gallery=wanted.gallery,
        iat=iat,
        exp=exp,
    )


def wanted_of(order: Order) -> Intent:
    """The intent of an order; a retry uses it again."""
    fields = order.model_dump(include=set(Intent.model_fields))
    return Intent(**{**fields, "mirrors": tuple(order.mirrors), "upgrade_policy": order.policy})


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
