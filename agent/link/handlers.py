"""Handlers for the requests that this node receives over NATS."""

from collections.abc import Callable

import structlog

from nodesmith.agent.operations.commands import NodeOperations
from nodesmith.agent.operations.installer import Installer
from nodesmith.agent.operations.order_checks import OrderRefused, OrderVerifier, refusal
from nodesmith.agent.run.running_models import AgentModels
from nodesmith.bus.presence import STOP_BACKEND
from nodesmith.bus.running_models import DELETE, STOP, UNLOAD
from nodesmith.contracts.nats.messages import (
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
from nodesmith.contracts.nats.running_models import ModelQuestion, ModelReply, ModelStopped

log = structlog.stdlib.get_logger(__name__)


class AgentHandlers:
    """Verifies signed orders and passes operations on to `NodeOperations`; answers the other requests itself."""

    def __init__(
        self,
        orders: OrderVerifier,
        operations: NodeOperations,
        installer: Installer,
        models: AgentModels,
        on_stop_order: Callable[[StopOrder], None],
    ) -> None:
        self._orders = orders
        self._operations = operations
        self._installer = installer
        self._models = models
        self._on_stop_order = on_stop_order

    async def order(self, command: SignedCommand) -> CommandReply | None:
        """Verify the order, then execute it. No await between the last check and the start of the work."""
        try:
            verified = await self._orders.verify_command(command)
        except OrderRefused as why:
            return refusal(command, why)
        return await self._operations.command(verified)

    async def cancel(self, command: CancelCommand) -> CancelReply:
        return await self._operations.cancel(command)

    async def ask(self, question: OpQuestion) -> OpReply:
        return await self._operations.ask(question)

    async def list_backends(self) -> BackendList:
        try:
            return BackendList(backends=await self._installer.list_backends())
        except OSError as error:
            return BackendList(error=str(error))

    async def stop_backend(self, command: Command) -> None:
        try:
            message = await self._orders.verify_request(command.signed, STOP_BACKEND)
        except OrderRefused as why:
            log.warning("stop.refused", error=str(why))
            return
        await self._models.stop_backend(Command.decode(message.encode()))

    async def stop_node(self, order: StopOrder) -> None:
        self._on_stop_order(order)


class SignedModelHandlers:
    """Handlers for running models: reading is open to every client, changes require a signed request."""

    def __init__(self, models: AgentModels, orders: OrderVerifier) -> None:
        self._models = models
        self._orders = orders
        self.running = models.running
        self.logs = models.logs

    async def unload(self, question: ModelQuestion) -> ModelReply:
        try:
            return await self._models.unload(await self._verify(question, UNLOAD))
        except OrderRefused as why:
            return ModelReply(error=str(why))

    async def stop(self, question: ModelQuestion) -> ModelStopped:
        try:
            return await self._models.stop(await self._verify(question, STOP))
        except OrderRefused as why:
            return ModelStopped(error=str(why))

    async def delete(self, question: ModelQuestion) -> ModelReply:
        try:
            return await self._models.delete(await self._verify(question, DELETE))
        except OrderRefused as why:
            return ModelReply(error=str(why))

    async def _verify(self, question: ModelQuestion, action: str) -> ModelQuestion:
        return ModelQuestion.decode((await self._orders.verify_request(question.signed, action)).encode())
