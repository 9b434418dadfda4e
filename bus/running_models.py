"""Running models of a node: list, unload, stop, delete, logs. Client of the control plane and server of the node."""

from typing import Protocol

from nodesmith.bus.commands import MessageHandler, ask_node, serve_subject
from nodesmith.bus.connection import Bus
from nodesmith.bus.presence import Seal
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.running_models import (
    LogsQuestion,
    LogsReply,
    ModelQuestion,
    ModelReply,
    ModelStopped,
    RunningModels,
)
from nodesmith.contracts.nats.wire import Message

UNLOAD, STOP, DELETE = "model.unload", "model.stop", "model.delete"


class ModelsClient:
    """The control plane's client."""

    def __init__(self, bus: Bus, seal: Seal) -> None:
        self._bus = bus
        self._seal = seal

    async def running(self, node_id: str, *, within: float) -> RunningModels:
        return await ask_node(self._bus, subjects.models_running(node_id), Message(), RunningModels, within)

    async def unload(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelReply:
        return await ask_node(
            self._bus, subjects.unload_model(node_id), self._sealed(node_id, UNLOAD, question), ModelReply, within
        )

    async def stop(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelStopped:
        return await ask_node(
            self._bus, subjects.stop_model(node_id), self._sealed(node_id, STOP, question), ModelStopped, within
        )

    async def delete(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelReply:
        return await ask_node(
            self._bus, subjects.delete_model(node_id), self._sealed(node_id, DELETE, question), ModelReply, within
        )

    async def logs(self, node_id: str, question: LogsQuestion, *, within: float) -> LogsReply:
        """Return the last log lines, or those since a cursor; `wait_s` of the question must be below `within`."""
        return await ask_node(self._bus, subjects.logs(node_id), question, LogsReply, within)

    def _sealed(self, node_id: str, action: str, question: ModelQuestion) -> ModelQuestion:
        """Add a signed copy for agents; LocalAI workers read the plain fields."""
        return question.model_copy(update={"signed": self._seal(node_id, action, question.encode().decode())})


class ModelHandlers(Protocol):
    """The message handlers of a node."""

    async def running(self) -> RunningModels: ...
    async def unload(self, question: ModelQuestion) -> ModelReply: ...
    async def stop(self, question: ModelQuestion) -> ModelStopped: ...
    async def delete(self, question: ModelQuestion) -> ModelReply: ...
    async def logs(self, question: LogsQuestion) -> LogsReply: ...


async def serve_models(bus: Bus, node_id: str, handlers: ModelHandlers) -> None:
    """Serve the node's model requests. Each message runs in its own task, so one that waits blocks no other."""
    await serve_subject(bus, subjects.models_running(node_id), MessageHandler(bytes, lambda _: handlers.running()))
    await serve_subject(bus, subjects.unload_model(node_id), MessageHandler(ModelQuestion.decode, handlers.unload))
    await serve_subject(bus, subjects.stop_model(node_id), MessageHandler(ModelQuestion.decode, handlers.stop))
    await serve_subject(bus, subjects.delete_model(node_id), MessageHandler(ModelQuestion.decode, handlers.delete))
    await serve_subject(bus, subjects.logs(node_id), MessageHandler(LogsQuestion.decode, handlers.logs))
