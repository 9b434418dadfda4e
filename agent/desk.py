"""What this node answers on the bus."""

from collections.abc import Callable

from agent.installer import Installer
from agent.models import Models
from agent.operations import Operations
from contracts.messages import (
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    OpQuestion,
    OpReply,
    StopOrder,
)


class Desk:
    """Operations go to their own desk; the rest is answered here."""

    def __init__(
        self, operations: Operations, installer: Installer, models: Models, obey: Callable[[StopOrder], None]
    ) -> None:
        self._operations = operations
        self._installer = installer
        self._models = models
        self._obey = obey

    async def command(self, command: Command) -> CommandReply | None:
        return await self._operations.command(command)

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
        await self._models.stop_backend(command)

    async def stop_node(self, order: StopOrder) -> None:
        self._obey(order)
