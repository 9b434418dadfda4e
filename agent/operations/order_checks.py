"""Verifies orders before execution; a refused order never changes the node."""

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from nodesmith.agent.link.pinned_trust import KeyExpired, PinnedTrust, UnknownKey
from nodesmith.agent.operations.used_requests import UsedRequests
from nodesmith.contracts.nats.messages import Answer, Command, CommandReply
from nodesmith.contracts.nats.orders import Order, Request, SignedCommand
from nodesmith.contracts.nats.wire import Signed
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from nodesmith.runtime.signing import ORDER, REQUEST, BadSignature
from nodesmith.runtime.trust_lists import NotTrusted

log = structlog.stdlib.get_logger(__name__)

CurrentDigest = Callable[[str], Awaitable[str]]
"""family -> digest of the installed version; empty when none is installed"""

_CLOCK_STEP_MS = 20
"""how far two clocks of one machine differ by rounding; no agent restarts as quickly"""


class OrderRefused(Exception):
    """The node refuses an order. Reason `ORDER` may pass later; every other reason is final."""

    def __init__(self, error: str, reason: Reason = Reason.REFUSED_BY_NODE) -> None:
        super().__init__(error)
        self.reason = reason


class OrderMemory(Protocol):
    """The node's record of earlier orders."""

    def knows(self, op_id: str) -> bool: ...
    def would_begin(self, op_id: str, decision: int) -> bool:
        """Whether a command starts or restarts work; otherwise it is answered from the journal."""
        ...

    def newest_iat(self, lock: str) -> int: ...


class OrderVerifier:
    """Turns a signed command into the verified command of its order, or raises `OrderRefused`."""

    def __init__(
        self,
        node_id: str,
        trust: PinnedTrust,
        memory: OrderMemory,
        current: CurrentDigest,
        used: UsedRequests | None = None,
    ) -> None:
        self._node_id = node_id
        self._trust = trust
        self._memory = memory
        self._current = current
        self._used = used or UsedRequests()
        self._started = time.monotonic()

    async def verify_command(self, signed: SignedCommand) -> Command:
        order = await self._verify_order(signed.order)
        self._check_addressee(order)
        if not self._memory.knows(order.op_id):
            await self._check_current(order)
        if self._memory.would_begin(order.op_id, signed.decision):
            self._check_newer(order)
        return order.command(signed.decision)

    async def verify_request(self, signed: Signed | None, action: str) -> str:
        """Return the message of a signed stop, unload or delete request; each request is accepted once."""
        if signed is None:
            raise OrderRefused("The request is not signed.")
        try:
            await self._verify(signed, REQUEST)
            request = Request.model_validate_json(signed.payload)
        except (KeyExpired, BadSignature, ValueError):
            raise OrderRefused("The signature of the request is invalid.") from None
        if (request.node, request.action) != (self._node_id, action):
            raise OrderRefused("The request is for another node or another action.")
        now = self._trust.clock()
        self._refuse_before_start(request, now)
        if now > request.exp or not await self._used.use(request.nonce, request.exp, now=now):
            raise OrderRefused("The request has expired or was carried out before.")
        return request.question

    def _refuse_before_start(self, request: Request, now: int) -> None:
        """Refuse what an earlier process may have carried out, if the disk was full and its nonces are gone.

        The API's clock is known to the second, so this alone would admit a request of the second before the start.
        """
        started = now - int((time.monotonic() - self._started) * 1000)
        if request.iat < started - _CLOCK_STEP_MS:
            raise OrderRefused("The request was made before this agent started. Repeat it.")

    async def _verify_order(self, signed: Signed) -> Order:
        """Verify the received bytes, then parse them."""
        try:
            await self._verify(signed, ORDER)
            return Order.model_validate_json(signed.payload)
        except KeyExpired:
            raise OrderRefused(f"The key {signed.kid} that signed the order has expired.", Reason.ORDER) from None
        except BadSignature:
            raise OrderRefused("The signature of the order is invalid.") from None
        except ValueError:
            raise OrderRefused("The order is signed but cannot be read: this agent may be too old.") from None

    async def _verify(self, signed: Signed, purpose: str) -> None:
        try:
            self._trust.verify(purpose, signed)
        except UnknownKey:
            await self._refresh_trust(signed.kid)
            try:
                self._trust.verify(purpose, signed)
            except UnknownKey:
                raise OrderRefused(f"This node does not trust the key {signed.kid} that signed the order.") from None

    async def _refresh_trust(self, kid: str) -> None:
        try:
            await self._trust.look_up(kid)
        except NotTrusted as error:
            message = f"This node does not trust the key {kid} that signed the order. {error}"
            raise OrderRefused(message, Reason.ORDER) from error

    def _check_addressee(self, order: Order) -> None:
        if order.node != self._node_id:
            raise OrderRefused(f"The order is for node {order.node}, and this is {self._node_id}.")
        if order.kind is Kind.UNKNOWN or not order.lock:
            raise OrderRefused("The order does not say what to do: this agent may be too old.")
        self._trust.note_iat(order.iat)
        if self._trust.now() > order.exp:
            raise OrderRefused("The order has expired.", Reason.ORDER)

    async def _check_current(self, order: Order) -> None:
        """Refuse to replace, roll back or remove a version other than the one the order was given for."""
        if order.if_current and (installed := await self._current(order.family)) != order.if_current:
            raise OrderRefused(
                f"The order is for {order.family} {order.if_current}, but {installed or 'nothing'} is installed now. "
                "Refresh the inventory of this node, then repeat the request."
            )

    def _check_newer(self, order: Order) -> None:
        """Refuse an order older than one already begun; no await follows before the start, so the check holds.

        A restarted operation is checked too, because its decision is not signed; its own issue time is accepted.
        """
        newest = self._memory.newest_iat(order.lock)
        if order.iat < newest or (order.iat == newest and not self._memory.knows(order.op_id)):
            raise OrderRefused(
                f"A newer order for {order.backend or order.family} has begun on this node since this one was given. "
                "Repeat the request if it is still wanted."
            )


def refusal(signed: SignedCommand, why: OrderRefused) -> CommandReply:
    log.warning("order.refused", kid=signed.order.kid, error=str(why))
    return CommandReply(answer=Answer.REFUSED, reason=why.reason, error=str(why))
