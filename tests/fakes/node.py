"""The simulated node of all tests on a real NATS server: it records what it receives and answers as the test sets."""

import asyncio
from collections.abc import Collection

from nodesmith.contracts.nats.messages import (
    Answer,
    BackendList,
    CancelAnswer,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    Installed,
    NodeOperationStatus,
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
from nodesmith.domain.kinds import Kind
from tests.orders import unwrapped

ECHO = Installed(name="echo", version="2", digest="ab")


class SimulatedNode:
    """A node with one backend; implements the handlers of `nodesmith.bus.commands` and `nodesmith.bus.running_models`.

    It accepts every command at once, unless the test sets another answer, blocks `may_reply` or makes it fail.
    """

    def __init__(self) -> None:
        self.backends = [ECHO]
        self.signed: list[SignedCommand] = []
        self.received: list[Command] = []
        self.commands: asyncio.Queue[Command] = asyncio.Queue()
        """the same, for tests that wait for them"""
        self.stopped: asyncio.Queue[Command] = asyncio.Queue()
        self.stop_orders: list[StopOrder] = []
        self.answers: list[CommandReply] = []
        """the next answers; then every command is accepted"""
        self.knows_operations = True
        """False: questions are answered with `unknown` until the first command arrives"""
        self.questions: asyncio.Queue[OpQuestion] = asyncio.Queue()
        self.standing: list[OpReply] = []
        """the next answers to questions; then every operation runs"""
        self.may_reply = asyncio.Event()
        self.may_reply.set()
        self.slow: Collection[Kind] = frozenset(Kind)
        """kinds that wait for `may_reply`"""
        self.is_silent = False
        """it does not reply to commands"""
        self.is_broken = False
        """its handlers raise"""

    async def order(self, command: SignedCommand) -> CommandReply | None:
        self.signed.append(command)
        return await self.command(unwrapped(command))

    async def command(self, command: Command) -> CommandReply | None:
        if self.is_broken:
            raise ValueError("a bug in the handlers")
        self.knows_operations = True
        self.received.append(command)
        self.commands.put_nowait(command)
        if command.kind in self.slow:
            await self.may_reply.wait()
        if self.is_silent:
            return None
        return self.answers.pop(0) if self.answers else CommandReply(op_id=command.op_id, answer=Answer.ACCEPTED)

    async def cancel(self, command: CancelCommand) -> CancelReply:
        return CancelReply(op_id=command.op_id, answer=CancelAnswer.STOPPED)

    async def ask(self, question: OpQuestion) -> OpReply:
        if not self.knows_operations:
            return OpReply(op_id=question.op_id)
        self.questions.put_nowait(question)
        running = OpReply(op_id=question.op_id, standing=NodeOperationStatus.RUNNING)
        return self.standing.pop(0) if self.standing else running

    async def list_backends(self) -> BackendList:
        return BackendList(backends=self.backends)

    async def stop_backend(self, command: Command) -> None:
        self.stopped.put_nowait(command)

    async def stop_node(self, order: StopOrder) -> None:
        self.stop_orders.append(order)

    # models ---------------------------------------------------------------------------------------------------

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
