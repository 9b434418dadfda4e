"""What this node answers on the bus."""

import asyncio

import structlog

from agent.installer import Installer
from agent.operations import Operations
from contracts.messages import (
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    OpQuestion,
    OpReply,
)

log = structlog.stdlib.get_logger(__name__)


class Desk:
    """Operations go to their own desk; the rest is answered here."""

    def __init__(self, operations: Operations, installer: Installer, stop: asyncio.Event) -> None:
        self._operations = operations
        self._installer = installer
        self._stop = stop

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
        """This agent installs backends and starts none, so there is nothing to stop."""
        log.info("stop.nothing_runs", backend=command.backend)

    async def stop_node(self) -> None:
        log.info("stop.asked_by_control_plane")
        self._stop.set()
