"""A node at the far end whose answers the test gives."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from contracts.messages import BackendList, CancelCommand, CancelReply, Command, CommandReply, OpReply, StopOrder
from services.ports import Reports


class PlayedLink:
    """Answers every cancel with `cancel_reply`; everything else is not expected here."""

    def __init__(self) -> None:
        self.cancels: list[CancelCommand] = []
        self.cancel_reply: CancelReply | Exception = AssertionError("no cancel was expected")

    async def cancel(self, node_id: str, command: CancelCommand, *, within: float) -> CancelReply:
        self.cancels.append(command)
        if isinstance(self.cancel_reply, Exception):
            raise self.cancel_reply
        return self.cancel_reply

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
        raise AssertionError(command)

    async def ask(self, node_id: str, op_id: str, *, within: float) -> OpReply:
        raise AssertionError(op_id)

    async def list_backends(self, node_id: str, *, within: float) -> BackendList:
        raise AssertionError(node_id)

    def attach(self, node_id: str, op_id: str) -> AbstractAsyncContextManager[Reports]:
        raise AssertionError(op_id)


class PlayedPresence:
    """The processes that are there, and what they were told."""

    def __init__(self) -> None:
        self.there: set[tuple[str, str]] = set()
        self.told: list[tuple[str, StopOrder]] = []

    async def is_there(self, node_id: str, boot_id: str) -> bool:
        return (node_id, boot_id) in self.there

    async def stop(self, node_id: str, order: StopOrder) -> None:
        self.told.append((node_id, order))


class PlayedRevocation:
    """How often the bus was to be told, and what waits until a node has been told."""

    def __init__(self) -> None:
        self.enforced = 0
        self.later: list[tuple[Callable[[], Awaitable[bool]], Callable[[], Awaitable[None]]]] = []

    async def enforce(self) -> None:
        self.enforced += 1

    def enforce_after(self, is_told: Callable[[], Awaitable[bool]], then: Callable[[], Awaitable[None]]) -> None:
        self.later.append((is_told, then))
