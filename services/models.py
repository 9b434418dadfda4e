"""What runs on a node: asked of the node itself, ended, deleted; its output read. Direct requests, no operations."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

import structlog

from contracts.http import Message
from contracts.messages import (
    LogsQuestion,
    LogsReply,
    ModelQuestion,
    ModelReply,
    ModelStopped,
    RunningModel,
    RunningModels,
    StopBackend,
)
from contracts.models_http import (
    LogsPage,
    ModelStopBody,
    ModelStopView,
    NodeModel,
    UnloadedNode,
    Unloading,
    UnloadView,
)
from contracts.node_http import NodeView
from domain.errors import (
    LinkDown,
    NoAnswer,
    NodeAway,
    NodeCannot,
    NodeNotForBackends,
    NodesmithError,
    ServiceUnavailable,
    UnknownBackend,
)
from domain.node import NodeStatus, NodeType
from domain.node import Protocol as Speech
from services.ports import BackendProcesses

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")

QUICK_S = 10.0
THOROUGH_S = 30.0
"""a process gets seconds to end, and files may be many"""
GLANCE_S = 2.0
"""for those who look at many nodes, or wait themselves"""
_AT_ONCE = 200


class ModelProcesses(Protocol):
    """A node's models over the bus. `NodeAway` and `NoAnswer` are the two ways not to be answered."""

    async def running(self, node_id: str, *, within: float) -> RunningModels: ...
    async def unload(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelReply: ...
    async def stop(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelStopped: ...
    async def delete(self, node_id: str, question: ModelQuestion, *, within: float) -> ModelReply: ...
    async def logs(self, node_id: str, question: LogsQuestion, *, within: float) -> LogsReply: ...


@dataclass(frozen=True)
class NodeModels:
    processes: ModelProcesses
    backends: BackendProcesses
    clock: Callable[[], datetime]

    async def running(self, node: NodeView, *, within: float = QUICK_S) -> list[NodeModel]:
        """What runs there now; nothing on a node that runs no backends."""
        if node.node_type is not NodeType.BACKEND:
            return []
        now = self.clock()
        return [_view(node, model, now) for model in await self._models(node, within)]

    async def glanced(self, node: NodeView) -> list[NodeModel]:
        """The same, for who would rather know nothing than wait."""
        try:
            return await self._glance(node)
        except LinkDown:
            return []

    async def everywhere(self, nodes: Iterable[NodeView]) -> list[NodeModel]:
        """On all healthy nodes; one that does not answer is left out."""
        found = await _side_by_side(self._glance, (node for node in nodes if node.status is NodeStatus.HEALTHY))
        return [model for models in found for model in models]

    async def unload(self, node: NodeView, name: str) -> Message:
        """Free what a model holds, all its replicas. What does not run is unloaded already."""
        await self._free(node, name, await self._named(node, name))
        return Message(message="model unloaded")

    async def unload_everywhere(self, nodes: Iterable[NodeView], name: str) -> UnloadView:
        """On every node that has it. One that fails is named and keeps it; where nobody has it, all is done."""

        async def unload(node: NodeView) -> UnloadedNode | None:
            told = UnloadedNode(node_id=node.id, node_name=node.name, result=Unloading.UNLOADED)
            try:
                held = await self._named(node, name, within=GLANCE_S)
            except LinkDown:
                raise
            except NodesmithError as error:
                result = Unloading.AWAY if isinstance(error, NodeAway) else Unloading.UNKNOWN
                return _not_unloaded(told, result, error)
            if not held:
                return None
            try:
                await self._free(node, name, held)
            except NodesmithError as error:
                return _not_unloaded(told, Unloading.FAILED, error)
            return told.model_copy(update={"replicas": len(held)})

        asked = (node for node in nodes if node.node_type is NodeType.BACKEND and node.status is not NodeStatus.PENDING)
        told = sorted(filter(None, await _side_by_side(unload, asked)), key=lambda each: each.node_name)
        view = UnloadView(message="", model_name=name, nodes=told)
        return view.model_copy(update={"message": _said(view)})

    async def stop(self, node: NodeView, body: ModelStopBody) -> ModelStopView:
        """End one process, and wait for its end."""
        key = f"{body.model_name}#{body.replica_index}"
        found = [model for model in await self._named(node, body.model_name) if _key(model) == key]
        question = ModelQuestion(
            model_name=body.model_name,
            process_key=key,
            expected_address=found[0].address if found else "",
            force=body.force,
        )
        reply = await self._asked(node, self.processes.stop(node.id, question, within=THOROUGH_S))
        _refuse(node, reply.error if not reply.terminated else "")
        said = f"{key} on {node.name} is stopped" if reply.matched else f"{key} did not run on {node.name}"
        return ModelStopView(message=said, process_key=key, was_running=reply.matched)

    async def delete(self, node: NodeView, name: str) -> Message:
        """Unload a model, then delete its files."""
        await self.unload(node, name)
        reply = await self._asked(
            node, self.processes.delete(node.id, ModelQuestion(model_name=name), within=THOROUGH_S)
        )
        _refuse(node, reply.error if not reply.success else "")
        return Message(message="model deleted from node")

    async def logs(self, node: NodeView, question: LogsQuestion) -> LogsPage:
        """The tail of what a backend wrote, or what came since a cursor, waited for."""
        reply = await self._logs(node, question)
        if reply.error:
            raise UnknownBackend(f"Node {node.name}: {reply.error}", node=node.name, backend=question.backend)
        return LogsPage(node_name=node.name, key=reply.key, lines=reply.lines, cursor=reply.cursor, keys=reply.keys)

    async def log_keys(self, node: NodeView) -> list[str]:
        """Whose output is kept there."""
        return (await self._logs(node, LogsQuestion())).keys

    async def _logs(self, node: NodeView, question: LogsQuestion) -> LogsReply:
        _refuse_other_types(node)
        if node.protocol is Speech.LOCALAI:
            raise NodeCannot(
                f"Node {node.name} is a LocalAI worker: it serves its logs itself, at {node.http_address or 'its own'}"
                " /v1/backend-logs.",
                node=node.name,
            )
        return await self._asked(node, self.processes.logs(node.id, question, within=question.wait_s + QUICK_S))

    async def _glance(self, node: NodeView) -> list[NodeModel]:
        """Without NATS nobody can say anything of any node: that is told, and not an empty list."""
        try:
            return await self.running(node, within=GLANCE_S)
        except LinkDown:
            raise
        except NodesmithError:
            return []

    async def _models(self, node: NodeView, within: float = QUICK_S) -> Sequence[RunningModel]:
        answer = await self._asked(node, self.processes.running(node.id, within=within))
        _refuse(node, answer.error)
        return answer.models

    async def _named(self, node: NodeView, name: str, within: float = QUICK_S) -> list[RunningModel]:
        _refuse_other_types(node)
        return [model for model in await self._models(node, within) if model.model_id == name]

    async def _free(self, node: NodeView, name: str, held: Sequence[RunningModel]) -> None:
        """All of them side by side: each may take seconds to end."""

        async def free(model: RunningModel) -> ModelReply:
            # Without an address a LocalAI worker frees whatever it finds first.
            question = ModelQuestion(model_name=name, address=model.address)
            return await self._asked(node, self.processes.unload(node.id, question, within=THOROUGH_S))

        for reply in await asyncio.gather(*map(free, held)):
            _refuse(node, reply.error if not reply.success else "")
        # the process of a LocalAI worker lives on, empty
        order = StopBackend(backend=name)
        if node.protocol is Speech.LOCALAI and not await self.backends.stop_backend(node.id, order):
            raise ServiceUnavailable(f"NATS does not answer: {name} is empty on node {node.name}, and runs on.")

    async def _asked(self, node: NodeView, asking: Awaitable[T]) -> T:
        """The bus knows ids; people know names."""
        try:
            return await asking
        except NodeAway as away:
            raise NodeAway(f"Nobody answers at node {node.name}, which is {node.status}.", node=node.name) from away
        except LinkDown:
            raise
        except NoAnswer as silent:
            raise NoAnswer(f"Node {node.name} did not answer in time.", node=node.name) from silent


async def _side_by_side(ask: Callable[[NodeView], Awaitable[T]], nodes: Iterable[NodeView]) -> list[T]:
    """Of a whole fleet, so many at once."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def asked(node: NodeView) -> T:
        async with slots:
            return await ask(node)

    return await asyncio.gather(*map(asked, nodes))


def _not_unloaded(told: UnloadedNode, result: Unloading, error: NodesmithError) -> UnloadedNode:
    if result is not Unloading.AWAY:
        log.warning("model.not_unloaded", node=told.node_name, result=result, error=error.message)
    return told.model_copy(update={"result": result, "warning": error.message})


def _said(view: UnloadView) -> str:
    """What became of it, for people."""
    done, kept = view.named(Unloading.UNLOADED), view.named(Unloading.FAILED, Unloading.UNKNOWN)
    away = len(view.named(Unloading.AWAY))
    said = f"unloaded on {_nodes(len(done))}" if done else "not unloaded" if kept else ""
    sentences = [
        f"{view.model_name} is {said}." if said else f"Nothing to do: {view.model_name} runs on no node that answers."
    ]
    if kept:
        sentences.append(f"{len(kept)} may still have it: {', '.join(kept)}.")
    if away:
        sentences.append(f"{_nodes(away)} could not be asked: nobody answers there.")
    return " ".join(sentences)


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"


def _refuse(node: NodeView, error: str) -> None:
    if error:
        raise NodeCannot(f"Node {node.name}: {error}", node=node.name)


def _refuse_other_types(node: NodeView) -> None:
    if node.node_type is not NodeType.BACKEND:
        raise NodeNotForBackends(f"Node {node.name} is of type {node.node_type} and runs no backends.", node=node.name)


def _key(model: RunningModel) -> str:
    return f"{model.model_id}#{model.replica_index}"


def _view(node: NodeView, model: RunningModel, now: datetime) -> NodeModel:
    return NodeModel(
        id=f"{node.id}/{_key(model)}",
        node_id=node.id,
        model_name=model.model_id,
        replica_index=model.replica_index,
        address=model.address,
        backend_type=model.backend or None,
        created_at=now,
        updated_at=now,
        node_name=node.name,
        version=model.version,
    )
