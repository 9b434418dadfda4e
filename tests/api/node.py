"""A simulated node on NATS, with the credential that the API issued."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nodesmith.bus.commands import serve
from nodesmith.bus.connection import Bus, node_bus
from nodesmith.bus.presence import answer_presence
from nodesmith.bus.running_models import serve_models
from nodesmith.contracts.nats.messages import (
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    Installed,
    OpQuestion,
    OpReply,
)
from nodesmith.contracts.nats.orders import SignedCommand
from nodesmith.contracts.nats.presence import StopOrder
from nodesmith.contracts.nats.running_models import (
    LogsQuestion,
    LogsReply,
    ModelQuestion,
    ModelReply,
    ModelStopped,
    RunningModels,
)
from nodesmith.domain.node import NatsCredential


class NodeHandlers:
    """A node that has one backend and does nothing else."""

    async def list_backends(self) -> BackendList:
        return BackendList(backends=[Installed(name="echo", version="2", digest="ab")])

    async def order(self, command: SignedCommand) -> CommandReply:
        raise AssertionError(command)

    async def cancel(self, command: CancelCommand) -> CancelReply:
        raise AssertionError(command)

    async def ask(self, question: OpQuestion) -> OpReply:
        raise AssertionError(question)

    async def stop_backend(self, command: Command) -> None:
        raise AssertionError(command)

    async def running(self) -> RunningModels:
        return RunningModels()

    async def unload(self, question: ModelQuestion) -> ModelReply:
        return ModelReply(success=True)

    async def stop(self, question: ModelQuestion) -> ModelStopped:
        return ModelStopped(terminated=True, process_key=question.process_key)

    async def delete(self, question: ModelQuestion) -> ModelReply:
        return ModelReply(success=True)

    async def logs(self, question: LogsQuestion) -> LogsReply:
        return LogsReply(keys=["echo#0"], key="echo#0", lines=["hello"], cursor=6)

    async def stop_node(self, order: StopOrder) -> None:
        raise AssertionError


class RecordingHandlers(NodeHandlers):
    """Records the orders that it receives."""

    def __init__(self) -> None:
        self.orders: list[StopOrder] = []

    async def stop_node(self, order: StopOrder) -> None:
        self.orders.append(order)

    async def received(self) -> list[StopOrder]:
        return self.orders


@asynccontextmanager
async def on_the_bus(
    node: dict[str, Any], handlers: NodeHandlers | None = None, *, boot_id: str = ""
) -> AsyncIterator[Bus]:
    credential = NatsCredential(node["nats_jwt"], node["nats_user_seed"], node["expires_at"])
    bus = node_bus(node["nats_url"], node["id"], lambda: credential, signs="nats_key" in node)
    bus.start()
    try:
        assert await bus.wait_up(10)
        await serve(bus, node["id"], handlers or NodeHandlers())
        await serve_models(bus, node["id"], handlers or NodeHandlers())
        await answer_presence(bus, node["id"], boot_id)
        yield bus
    finally:
        await bus.close()
