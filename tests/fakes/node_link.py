"""Simulated links to a node, with replies chosen by the test."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from nodesmith.contracts.nats.messages import (
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    OpReply,
    Outcome,
)
from nodesmith.contracts.nats.orders import SignedCommand
from nodesmith.contracts.nats.presence import StopOrder
from nodesmith.domain.kinds import Kind
from nodesmith.services.ports import Reports


class SimulatedLink:
    """Answers every cancel with `cancel_reply`; fails on every other call."""

    def __init__(self) -> None:
        self.cancels: list[CancelCommand] = []
        self.cancelled_on: list[str] = []
        self.cancel_reply: CancelReply | Exception = AssertionError("no cancel was expected")

    async def cancel(self, node_id: str, command: CancelCommand, *, within: float) -> CancelReply:
        self.cancels.append(command)
        self.cancelled_on.append(node_id)
        if isinstance(self.cancel_reply, Exception):
            raise self.cancel_reply
        return self.cancel_reply

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
        raise AssertionError(command)

    async def order(self, node_id: str, kind: Kind, command: SignedCommand, *, within: float) -> CommandReply:
        raise AssertionError(command)

    async def ask(self, node_id: str, op_id: str, *, within: float) -> OpReply:
        raise AssertionError(op_id)

    async def list_backends(self, node_id: str, *, within: float) -> BackendList:
        raise AssertionError(node_id)

    def attach(self, node_id: str, op_id: str) -> AbstractAsyncContextManager[Reports]:
        raise AssertionError(op_id)


class SimulatedPresence:
    """The running processes, and the orders sent to them."""

    def __init__(self) -> None:
        self.there: set[tuple[str, str]] = set()
        self.stop_orders: list[tuple[str, StopOrder]] = []

    async def is_alive(self, node_id: str, boot_id: str) -> bool:
        return (node_id, boot_id) in self.there

    async def stop(self, node_id: str, order: StopOrder) -> None:
        self.stop_orders.append((node_id, order))


class AcceptingProofs:
    """Accepts unsigned outcomes, for operations of nodes that do not exist."""

    async def verify_outcome(self, _node_id: str, _op_id: str, outcome: Outcome) -> Outcome:
        return outcome

    async def signs(self, _node_id: str) -> bool:
        return False


class SimulatedRevocation:
    """Counts the calls of `enforce`, and keeps the revocations that wait for a node."""

    def __init__(self) -> None:
        self.enforced = 0
        self.later: list[tuple[Callable[[], Awaitable[bool]], Callable[[], Awaitable[None]]]] = []

    async def enforce(self) -> None:
        self.enforced += 1

    def enforce_after(self, is_done: Callable[[], Awaitable[bool]], then: Callable[[], Awaitable[None]]) -> None:
        self.later.append((is_done, then))
