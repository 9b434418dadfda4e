"""Commands to a node and its replies: the client of the control plane and the server of the node."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import structlog
from nats.aio.msg import Msg

from nodesmith.bus.connection import Bus
from nodesmith.bus.reports import ReportHub, Reports, signed_outcome
from nodesmith.bus.signing import Signed
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import (
    Answer,
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    OpQuestion,
    OpReply,
)
from nodesmith.contracts.nats.orders import SignedCommand
from nodesmith.contracts.nats.presence import StopOrder
from nodesmith.contracts.nats.wire import Message
from nodesmith.domain.errors import NoAnswer
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)

ReplyT = TypeVar("ReplyT", bound=Message)
RequestT = TypeVar("RequestT")


class NodeClient:
    """The control plane's client: sends requests to a node and subscribes to its reports."""

    def __init__(self, bus: Bus, reports: ReportHub) -> None:
        self._bus = bus
        self._reports = reports

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
        """Send an install, upgrade or removal to a LocalAI worker, which cannot verify signatures."""
        return await ask_node(self._bus, subjects.command(node_id, command.kind), command, CommandReply, within)

    async def order(self, node_id: str, kind: Kind, command: SignedCommand, *, within: float) -> CommandReply:
        """Send a signed order to an agent. Safe to repeat: the agent recognizes op_id and decision."""
        return await ask_node(self._bus, subjects.command(node_id, kind), command, CommandReply, within)

    async def cancel(self, node_id: str, command: CancelCommand, *, within: float) -> CancelReply:
        return await ask_node(self._bus, subjects.cancel(node_id), command, CancelReply, within)

    async def ask(self, node_id: str, op_id: str, *, within: float) -> OpReply:
        """Ask the node for the status of an operation."""
        question = OpQuestion(op_id=op_id)
        return await ask_node(self._bus, subjects.operation(node_id), question, OpReply, within)

    async def list_backends(self, node_id: str, *, within: float) -> BackendList:
        return await ask_node(self._bus, subjects.list_backends(node_id), Message(), BackendList, within)

    def attach(self, node_id: str, op_id: str) -> AbstractAsyncContextManager[Reports]:
        return self._reports.attach(node_id, op_id)


async def ask_node(bus: Bus, subject: str, question: Message, answer: type[ReplyT], within: float) -> ReplyT:
    """Send a request to a node; raise `NoAnswer` also if the reply is not signed by that node or is unreadable."""
    reply = await bus.request(subject, question.encode(), within=within)
    payload = await bus.signatures.open(subjects.node_of(subject), Signed.REPLY, reply.subject, reply.data)
    try:
        return answer.decode(payload)
    except ValueError as error:
        log.warning("nats.unreadable", subject=subject, bytes=len(payload))
        raise NoAnswer("The node's answer cannot be read.", subject=subject) from error


class CommonHandlers(Protocol):
    """Message handlers that every node has; a handler that returns None sends no reply."""

    async def list_backends(self) -> BackendList: ...
    async def stop_backend(self, command: Command) -> None: ...
    async def stop_node(self, order: StopOrder) -> None: ...


class LocalAIHandlers(CommonHandlers, Protocol):
    """Additional handlers of a LocalAI worker (protocol 1)."""

    async def command(self, command: Command) -> CommandReply | None: ...


class NodeHandlers(CommonHandlers, Protocol):
    """Additional handlers of an agent (protocol 2): signed orders, answered at once, executed in the background."""

    async def order(self, command: SignedCommand) -> CommandReply | None: ...
    async def cancel(self, command: CancelCommand) -> CancelReply: ...
    async def ask(self, question: OpQuestion) -> OpReply: ...


@dataclass(frozen=True)
class MessageHandler(Generic[RequestT]):
    """Parses one kind of message and produces its reply."""

    read: Callable[[bytes], RequestT]
    answer: Callable[[RequestT], Awaitable[Message | None]]

    async def reply_to(self, message: Msg) -> Message | None:
        try:
            request = self.read(message.data)
        except ValueError:
            log.warning("nats.unreadable", subject=message.subject, bytes=len(message.data))
            return _UNREADABLE
        try:
            return await self.answer(request)
        except Exception:
            log.exception("nats.not_answered", subject=message.subject)
            return None


async def serve(bus: Bus, node_id: str, handlers: NodeHandlers) -> None:
    """Serve an agent's commands. Each message runs in its own task, so a slow one blocks no other."""
    for subject in dict.fromkeys(subjects.command(node_id, kind) for kind in Kind):
        await serve_subject(bus, subject, MessageHandler(SignedCommand.decode, handlers.order))
    await _serve_common(bus, node_id, handlers)
    await serve_subject(bus, subjects.cancel(node_id), MessageHandler(CancelCommand.decode, handlers.cancel))
    await serve_subject(bus, subjects.operation(node_id), MessageHandler(OpQuestion.decode, handlers.ask))


async def serve_localai(bus: Bus, node_id: str, handlers: LocalAIHandlers) -> None:
    """Serve the commands of a LocalAI worker, which has neither cancel nor op."""
    for kind in (each for each in Kind if each.rules.localai):
        read = partial(_read_command, kind)
        await serve_subject(bus, subjects.command(node_id, kind), MessageHandler(read, handlers.command))
    await _serve_common(bus, node_id, handlers)


async def _serve_common(bus: Bus, node_id: str, handlers: CommonHandlers) -> None:
    await serve_subject(bus, subjects.list_backends(node_id), MessageHandler(bytes, lambda _: handlers.list_backends()))
    await serve_subject(bus, subjects.stop_backend(node_id), MessageHandler(_read_stop, handlers.stop_backend))
    await serve_subject(bus, subjects.stop_node(node_id), MessageHandler(_read_stop_order, handlers.stop_node))


_UNREADABLE = CommandReply(
    answer=Answer.REFUSED,
    reason=Reason.REFUSED_BY_NODE,
    error="The message cannot be read: it is not this command, or it is not signed.",
)


def _read_command(meant: Kind, payload: bytes) -> Command:
    command = Command.decode(payload)
    return command if command.kind is not Kind.UNKNOWN else command.model_copy(update={"kind": meant})


def _read_stop(payload: bytes) -> Command:
    """Parse a stop; LocalAI sends an empty message or `null` to stop every backend."""
    return Command() if payload in (b"", b"null") else Command.decode(payload)


def _read_stop_order(payload: bytes) -> StopOrder:
    """Parse the order to leave; `null` from LocalAI and unreadable messages are such orders too."""
    try:
        return StopOrder.decode(payload)
    except ValueError:
        return StopOrder()


async def serve_subject(bus: Bus, subject: str, handler: MessageHandler[Any]) -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def answer(message: Msg) -> None:
        reply = await handler.reply_to(message)
        if message.reply and reply is not None:
            stamped_reply = _with_signed_outcome(bus, subjects.node_of(message.subject), reply)
            await bus.publish(message.reply, bus.seal(Signed.REPLY, message.reply, stamped_reply.encode()))

    async def in_own_task(message: Msg) -> None:
        task = asyncio.create_task(answer(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await bus.subscribe(subject, in_own_task)


def _with_signed_outcome(bus: Bus, node_id: str, reply: Message) -> Message:
    """Sign the outcome in its own envelope, because it is stored longer than the reply that carries it."""
    if not isinstance(reply, CommandReply | CancelReply | OpReply) or reply.outcome is None:
        return reply
    envelope = signed_outcome(bus, node_id, reply.outcome).decode()
    return reply.model_copy(update={"outcome": reply.outcome.model_copy(update={"signed": envelope})})
