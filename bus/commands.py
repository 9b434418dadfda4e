"""Commands to a node and its answers: the control plane's end and the node's end side by side."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

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


class NodeClient:
    """The control plane's end: asks one node, and hears what it reports."""

    def __init__(self, bus: Bus, reports: ReportHub) -> None:
        self._bus = bus
        self._reports = reports

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
        """Send an install, upgrade or removal. Safe to repeat: op_id and fence tell the node what is new."""
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


async def serve(bus: Bus, node_id: str, desk: NodeDesk) -> None:
    """The node's end: hear its own commands. Each message has its own task, so a slow one blocks no other."""
    await serve_localai(bus, node_id, desk)
    answerers: dict[str, _Answerer] = {
        subjects.cancel(node_id): lambda payload: desk.cancel(CancelCommand.decode(payload)),
        subjects.operation(node_id): lambda payload: desk.ask(OpQuestion.decode(payload)),
    }
    await _hear(bus, answerers)


async def serve_localai(bus: Bus, node_id: str, desk: WorkerDesk) -> None:
    """The same for a node that knows nothing of cancel and op."""
    answerers: dict[str, _Answerer] = {
        subjects.install(node_id): _commands(desk, Kind.INSTALL),
        subjects.upgrade(node_id): _commands(desk, Kind.UPGRADE),
        subjects.delete(node_id): _commands(desk, Kind.REMOVE),
        subjects.list_backends(node_id): lambda _payload: desk.list_backends(),
        subjects.stop_backend(node_id): lambda payload: desk.stop_backend(_stop_command(payload)),
        subjects.stop_node(node_id): lambda payload: desk.stop_node(_stop_order(payload)),
    }
    await _hear(bus, answerers)


_Answerer = Callable[[bytes], Awaitable[Message | None]]

_NOT_UNDERSTOOD = CommandReply(
    answer=Answer.REFUSED, reason=Reason.REFUSED_BY_NODE, error="The message cannot be read: it is not this command."
)


async def _hear(bus: Bus, answerers: dict[str, _Answerer]) -> None:
    tasks: set[asyncio.Task[None]] = set()
    for subject, answerer in answerers.items():
        await bus.subscribe(subject, _in_own_task(bus, answerer, tasks))


def _commands(desk: WorkerDesk, meant: Kind) -> _Answerer:
    async def answer(payload: bytes) -> Message | None:
        command = Command.decode(payload)
        if command.kind is Kind.UNKNOWN:
            command = command.model_copy(update={"kind": meant})
        return await desk.command(command)

    return answer


def _stop_command(payload: bytes) -> Command:
    """LocalAI sends nothing, or `null`, to stop everything."""
    return Command() if payload in (b"", b"null") else Command.decode(payload)


def _stop_order(payload: bytes) -> StopOrder:
    """LocalAI sends `null`; whatever else cannot be read is an order to leave all the same."""
    try:
        return StopOrder.decode(payload)
    except ValueError:
        return StopOrder()


def _in_own_task(bus: Bus, answerer: _Answerer, tasks: set[asyncio.Task[None]]) -> Callable[[Msg], Awaitable[None]]:
    async def handle(message: Msg) -> None:
        task = asyncio.create_task(_answer(bus, answerer, message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return handle


async def _answer(bus: Bus, answerer: _Answerer, message: Msg) -> None:
    try:
        reply = await answerer(message.data)
    except ValueError:
        log.warning("nats.unreadable", subject=message.subject, bytes=len(message.data))
        reply = _NOT_UNDERSTOOD
    if message.reply and reply is not None:
        await bus.publish(message.reply, reply.encode())
