"""Commands to a node and its answers: the control plane's end and the node's end side by side."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import structlog
from nats.aio.msg import Msg

from bus.connection import Bus
from bus.reports import ReportHub, Reports
from contracts import subjects
from contracts.messages import (
    Answer,
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    Message,
    OpQuestion,
    OpReply,
    StopOrder,
)
from domain.errors import NoAnswer
from domain.operation import Kind, Reason

log = structlog.stdlib.get_logger(__name__)

Reply = TypeVar("Reply", bound=Message)
Asked = TypeVar("Asked")


class NodeClient:
    """The control plane's end: asks one node, and hears what it reports."""

    def __init__(self, bus: Bus, reports: ReportHub) -> None:
        self._bus = bus
        self._reports = reports

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
        """Send an install, upgrade or removal. Safe to repeat: op_id and decision tell the node what is new."""
        subject = _subject_of(command.kind)(node_id)
        return await self._ask(subject, command, CommandReply, within)

    async def cancel(self, node_id: str, command: CancelCommand, *, within: float) -> CancelReply:
        return await self._ask(subjects.cancel(node_id), command, CancelReply, within)

    async def ask(self, node_id: str, op_id: str, *, within: float) -> OpReply:
        """What the node knows of an operation."""
        return await self._ask(subjects.operation(node_id), OpQuestion(op_id=op_id), OpReply, within)

    async def list_backends(self, node_id: str, *, within: float) -> BackendList:
        return await self._ask(subjects.list_backends(node_id), Message(), BackendList, within)

    def attach(self, node_id: str, op_id: str) -> AbstractAsyncContextManager[Reports]:
        return self._reports.attach(node_id, op_id)

    async def _ask(self, subject: str, question: Message, answer: type[Reply], within: float) -> Reply:
        payload = await self._bus.request(subject, question.encode(), within=within)
        try:
            return answer.decode(payload)
        except ValueError as error:
            log.warning("nats.unreadable", subject=subject, bytes=len(payload))
            raise NoAnswer("The node's answer cannot be read.", subject=subject) from error


def _subject_of(kind: Kind) -> Callable[[str], str]:
    if kind is Kind.REMOVE:
        return subjects.delete
    if kind in (Kind.UPGRADE, Kind.ROLLBACK):
        return subjects.upgrade
    return subjects.install


class WorkerDesk(Protocol):
    """What a LocalAI worker does with each message (protocol 1). None is no answer at all."""

    async def command(self, command: Command) -> CommandReply | None: ...
    async def list_backends(self) -> BackendList: ...
    async def stop_backend(self, command: Command) -> None: ...
    async def stop_node(self, order: StopOrder) -> None: ...


class NodeDesk(WorkerDesk, Protocol):
    """What our own agent does (protocol 2): every answer is given at once, the work goes on behind it."""

    async def cancel(self, command: CancelCommand) -> CancelReply: ...
    async def ask(self, question: OpQuestion) -> OpReply: ...


@dataclass(frozen=True)
class Exchange(Generic[Asked]):
    """How one kind of message is read, and what answers it."""

    read: Callable[[bytes], Asked]
    answer: Callable[[Asked], Awaitable[Message | None]]

    async def reply_to(self, message: Msg) -> Message | None:
        try:
            asked = self.read(message.data)
        except ValueError:
            log.warning("nats.unreadable", subject=message.subject, bytes=len(message.data))
            return _NOT_UNDERSTOOD
        try:
            return await self.answer(asked)
        except Exception:
            log.exception("nats.not_answered", subject=message.subject)
            return None


async def serve(bus: Bus, node_id: str, desk: NodeDesk) -> None:
    """The node's end: hear its own commands. Each message has its own task, so a slow one blocks no other."""
    await serve_localai(bus, node_id, desk)
    await hear(bus, subjects.cancel(node_id), Exchange(CancelCommand.decode, desk.cancel))
    await hear(bus, subjects.operation(node_id), Exchange(OpQuestion.decode, desk.ask))


async def serve_localai(bus: Bus, node_id: str, desk: WorkerDesk) -> None:
    """The same for a node that knows nothing of cancel and op."""
    kinds = {
        Kind.INSTALL: subjects.install(node_id),
        Kind.UPGRADE: subjects.upgrade(node_id),
        Kind.REMOVE: subjects.delete(node_id),
    }
    for kind, subject in kinds.items():
        await hear(bus, subject, Exchange(partial(_read_command, kind), desk.command))
    await hear(bus, subjects.list_backends(node_id), Exchange(bytes, lambda _: desk.list_backends()))
    await hear(bus, subjects.stop_backend(node_id), Exchange(_read_stop, desk.stop_backend))
    await hear(bus, subjects.stop_node(node_id), Exchange(_read_stop_order, desk.stop_node))


_NOT_UNDERSTOOD = CommandReply(
    answer=Answer.REFUSED, reason=Reason.REFUSED_BY_NODE, error="The message cannot be read: it is not this command."
)


def _read_command(meant: Kind, payload: bytes) -> Command:
    command = Command.decode(payload)
    return command if command.kind is not Kind.UNKNOWN else command.model_copy(update={"kind": meant})


def _read_stop(payload: bytes) -> Command:
    """LocalAI sends nothing, or `null`, to stop everything."""
    return Command() if payload in (b"", b"null") else Command.decode(payload)


def _read_stop_order(payload: bytes) -> StopOrder:
    """LocalAI sends `null`; whatever else cannot be read is an order to leave all the same."""
    try:
        return StopOrder.decode(payload)
    except ValueError:
        return StopOrder()


async def hear(bus: Bus, subject: str, exchange: Exchange[Any]) -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def answer(message: Msg) -> None:
        reply = await exchange.reply_to(message)
        if message.reply and reply is not None:
            await bus.publish(message.reply, reply.encode())

    async def in_own_task(message: Msg) -> None:
        task = asyncio.create_task(answer(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await bus.subscribe(subject, in_own_task)
