"""Running models: lists, unloads, stops and deletes them and reads their logs, by direct requests to the node."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, TypeVar

import structlog

from nodesmith.contracts.nats.messages import StopBackend
from nodesmith.contracts.nats.running_models import (
    LogsQuestion,
    LogsReply,
    ModelQuestion,
    ModelReply,
    ModelStopped,
    RunningModel,
    RunningModels,
)
from nodesmith.domain.eligibility import RULES, Obstacle, obstacle, runs_backends
from nodesmith.domain.errors import (
    LinkDown,
    NoAnswer,
    NodeAway,
    NodeCannot,
    NodesmithError,
    ServiceUnavailable,
    UnknownBackend,
)
from nodesmith.domain.node import Node, NodeStatus
from nodesmith.domain.node import Protocol as Wire
from nodesmith.domain.running_model import LoadedModel, Unloaded, UnloadedNode, UnloadResult
from nodesmith.services.ports import BackendProcesses

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")

TIMEOUT_S = 10.0
LONG_TIMEOUT_S = 30.0
"""ending a process and deleting many files take seconds"""
SHORT_TIMEOUT_S = 2.0
"""for requests to many nodes, or with a waiting caller"""
_CONCURRENCY = 200


class ModelProcesses(Protocol):
    """A node's models over NATS. Without a reply they raise `NodeAway` (no subscriber) or `NoAnswer` (timeout)."""

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

    async def running(self, node: Node, *, within: float = TIMEOUT_S) -> list[LoadedModel]:
        """The models that run on the node now; none on a node without backends."""
        if not runs_backends(node):
            return []
        now = self.clock()
        return [_loaded(node, model, now) for model in await self._models(node, within)]

    async def running_if_answered(self, node: Node) -> list[LoadedModel]:
        """Like `running`, with a short timeout and an empty list on failure."""
        try:
            return await self._running_quickly(node)
        except LinkDown:
            return []

    async def everywhere(self, nodes: Iterable[Node]) -> list[LoadedModel]:
        """The models on all healthy nodes; nodes that do not answer are omitted."""
        found = await _ask_all(self._running_quickly, (node for node in nodes if node.status is NodeStatus.HEALTHY))
        return [model for models in found for model in models]

    async def unload(self, node: Node, name: str) -> None:
        """Unload all replicas of a model; succeeds if none runs."""
        await self._unload_replicas(node, name, await self._named(node, name))

    async def unload_everywhere(self, nodes: Iterable[Node], name: str) -> Unloaded:
        """Unload a model on every node that has it; names the nodes where that failed."""

        async def unload(node: Node) -> UnloadedNode | None:
            unloaded = UnloadedNode(node_id=node.id, node_name=node.name, result=UnloadResult.UNLOADED)
            try:
                held = await self._named(node, name, within=SHORT_TIMEOUT_S)
            except LinkDown:
                raise
            except NodesmithError as error:
                result = UnloadResult.AWAY if isinstance(error, NodeAway) else UnloadResult.UNKNOWN
                return _not_unloaded(unloaded, result, error)
            if not held:
                return None
            try:
                await self._unload_replicas(node, name, held)
            except NodesmithError as error:
                return _not_unloaded(unloaded, UnloadResult.FAILED, error)
            return replace(unloaded, replicas=len(held))

        asked = (node for node in nodes if obstacle(node, on_drained=True) is None)
        return Unloaded(name, sorted(filter(None, await _ask_all(unload, asked)), key=lambda each: each.node_name))

    async def stop(self, node: Node, name: str, replica: int, *, force: bool = False) -> bool:
        """Stop one process, and wait until it has ended; returns whether it ran."""
        key = f"{name}#{replica}"
        found = [model for model in await self._named(node, name) if _key(model) == key]
        question = ModelQuestion(
            model_name=name,
            process_key=key,
            expected_address=found[0].address if found else "",
            force=force,
        )
        reply = await self._request(node, self.processes.stop(node.id, question, within=LONG_TIMEOUT_S))
        _refuse(node, reply.error if not reply.terminated else "")
        return reply.matched

    async def delete(self, node: Node, name: str) -> None:
        """Unload a model, then delete its files."""
        await self.unload(node, name)
        reply = await self._request(
            node, self.processes.delete(node.id, ModelQuestion(model_name=name), within=LONG_TIMEOUT_S)
        )
        _refuse(node, reply.error if not reply.success else "")

    async def logs(self, node: Node, question: LogsQuestion) -> LogsReply:
        """The last lines of a backend's output, or the lines after a cursor, waiting for new ones."""
        reply = await self._logs(node, question)
        if reply.error:
            raise UnknownBackend(f"Node {node.name}: {reply.error}", node=node.name, backend=question.backend)
        return reply

    async def log_keys(self, node: Node) -> list[str]:
        """The keys of the processes whose output the node keeps."""
        return (await self._logs(node, LogsQuestion())).keys

    async def _logs(self, node: Node, question: LogsQuestion) -> LogsReply:
        _refuse_other_types(node)
        if node.protocol is Wire.LOCALAI:
            raise NodeCannot(
                f"Node {node.name} is a LocalAI worker: it serves its logs itself, at {node.http_address or 'its own'}"
                " /v1/backend-logs.",
                node=node.name,
            )
        return await self._request(node, self.processes.logs(node.id, question, within=question.wait_s + TIMEOUT_S))

    async def _running_quickly(self, node: Node) -> list[LoadedModel]:
        """Ask with a short timeout; only a lost connection to NATS is raised, because it affects every node."""
        try:
            return await self.running(node, within=SHORT_TIMEOUT_S)
        except LinkDown:
            raise
        except NodesmithError:
            return []

    async def _models(self, node: Node, within: float = TIMEOUT_S) -> Sequence[RunningModel]:
        answer = await self._request(node, self.processes.running(node.id, within=within))
        _refuse(node, answer.error)
        return answer.models

    async def _named(self, node: Node, name: str, within: float = TIMEOUT_S) -> list[RunningModel]:
        _refuse_other_types(node)
        return [model for model in await self._models(node, within) if model.model_id == name]

    async def _unload_replicas(self, node: Node, name: str, held: Sequence[RunningModel]) -> None:
        """Unload the replicas concurrently: each may take seconds."""

        async def free(model: RunningModel) -> ModelReply:
            # Without an address a LocalAI worker frees whatever it finds first.
            question = ModelQuestion(model_name=name, address=model.address)
            return await self._request(node, self.processes.unload(node.id, question, within=LONG_TIMEOUT_S))

        for reply in await asyncio.gather(*map(free, held)):
            _refuse(node, reply.error if not reply.success else "")
        # a LocalAI worker keeps the empty process running
        order = StopBackend(backend=name)
        if node.protocol is Wire.LOCALAI and not await self.backends.stop_backend(node.id, order):
            raise ServiceUnavailable(
                f"NATS does not answer: {name} is unloaded on node {node.name}, but its process still runs."
            )

    async def _request(self, node: Node, asking: Awaitable[T]) -> T:
        """Repeat bus errors with the name of the node instead of its id."""
        try:
            return await asking
        except NodeAway as away:
            raise NodeAway(f"Node {node.name} does not answer; it is {node.status}.", node=node.name) from away
        except LinkDown:
            raise
        except NoAnswer as silent:
            raise NoAnswer(f"Node {node.name} did not answer in time.", node=node.name) from silent


async def _ask_all(ask: Callable[[Node], Awaitable[T]], nodes: Iterable[Node]) -> list[T]:
    """Ask all nodes with limited concurrency."""
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def asked(node: Node) -> T:
        async with slots:
            return await ask(node)

    return await asyncio.gather(*map(asked, nodes))


def _not_unloaded(unloaded: UnloadedNode, result: UnloadResult, error: NodesmithError) -> UnloadedNode:
    if result is not UnloadResult.AWAY:
        log.warning("model.not_unloaded", node=unloaded.node_name, result=result, error=error.message)
    return replace(unloaded, result=result, warning=error.message)


def _refuse(node: Node, error: str) -> None:
    if error:
        raise NodeCannot(f"Node {node.name}: {error}", node=node.name)


def _refuse_other_types(node: Node) -> None:
    if not runs_backends(node):
        raise RULES[Obstacle.NOT_FOR_BACKENDS].refusal(node)


def _key(model: RunningModel) -> str:
    return f"{model.model_id}#{model.replica_index}"


def _loaded(node: Node, model: RunningModel, now: datetime) -> LoadedModel:
    return LoadedModel(
        node_id=node.id,
        node_name=node.name,
        name=model.model_id,
        replica=model.replica_index,
        address=model.address,
        backend=model.backend,
        version=model.version,
        reported_at=now,
    )
