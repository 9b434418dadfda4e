"""What runs on a node: asked for, stopped, and its output read; both ends side by side."""

from typing import Protocol, TypeVar

import structlog

from bus.commands import Exchange, hear
from bus.connection import Bus
from contracts import subjects
from contracts.messages import (
    LogsQuestion,
    LogsReply,
    Message,
    ModelQuestion,
    ModelReply,
    ModelStopped,
    RunningModels,
)
from domain.errors import NoAnswer

log = structlog.stdlib.get_logger(__name__)

Reply = TypeVar("Reply", bound=Message)


class ModelsClient:
    """The control plane's end."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def running(self, node_id: str, *, within: float) -> RunningModels:
        return await self._ask(subjects.models_running(node_id), Message(), RunningModels, within)

    async def unload(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelReply:
        return await self._ask(subjects.unload_model(node_id), question, ModelReply, within)

    async def stop(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelStopped:
        return await self._ask(subjects.stop_model(node_id), question, ModelStopped, within)

    async def delete(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelReply:
        return await self._ask(subjects.delete_model(node_id), question, ModelReply, within)

    async def logs(self, node_id: str, question: LogsQuestion, *, within: float) -> LogsReply:
        """The tail, or what came since a cursor; `wait_s` of the question has to be below `within`."""
        return await self._ask(subjects.logs(node_id), question, LogsReply, within)

    async def _ask(self, subject: str, question: Message, answer: type[Reply], within: float) -> Reply:
        payload = await self._bus.request(subject, question.encode(), within=within)
        try:
            return answer.decode(payload)
        except ValueError as error:
            log.warning("nats.unreadable", subject=subject, bytes=len(payload))
            raise NoAnswer("The node's answer cannot be read.", subject=subject) from error


class ModelsDesk(Protocol):
    """What a node does with each message."""

    async def running(self) -> RunningModels: ...
    async def unload(self, question: ModelQuestion) -> ModelReply: ...
    async def stop(self, question: ModelQuestion) -> ModelStopped: ...
    async def delete(self, question: ModelQuestion) -> ModelReply: ...
    async def logs(self, question: LogsQuestion) -> LogsReply: ...


async def serve_models(bus: Bus, node_id: str, desk: ModelsDesk) -> None:
    """The node's end. Each message has its own task, so one that waits blocks no other."""
    await hear(bus, subjects.models_running(node_id), Exchange(bytes, lambda _: desk.running()))
    await hear(bus, subjects.unload_model(node_id), Exchange(ModelQuestion.decode, desk.unload))
    await hear(bus, subjects.stop_model(node_id), Exchange(ModelQuestion.decode, desk.stop))
    await hear(bus, subjects.delete_model(node_id), Exchange(ModelQuestion.decode, desk.delete))
    await hear(bus, subjects.logs(node_id), Exchange(LogsQuestion.decode, desk.logs))
