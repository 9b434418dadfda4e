"""Simulated nodes that run models."""

import asyncio

from nodesmith.contracts.nats.running_models import (
    LogsQuestion,
    LogsReply,
    ModelQuestion,
    ModelReply,
    ModelStopped,
    RunningModel,
    RunningModels,
)
from tests.fakes.node import SimulatedNode


class NodeWithModels(SimulatedNode):
    """Two replicas of one model and one other; records the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, ModelQuestion]] = []
        self.refusal = ""
        self.more = asyncio.Event()
        self.waits = asyncio.Event()

    async def running(self) -> RunningModels:
        two = [RunningModel(model_id="llama", replica_index=n, address=f"127.0.0.1:5100{n}") for n in (0, 1)]
        other = RunningModel(model_id="echo", address="127.0.0.1:51007", backend="echo", version="2")
        return RunningModels(models=[*two, other])

    async def unload(self, question: ModelQuestion) -> ModelReply:
        self.asked.append(("unload", question))
        return ModelReply(success=not self.refusal, error=self.refusal)

    async def stop(self, question: ModelQuestion) -> ModelStopped:
        self.asked.append(("stop", question))
        matched = question.model_name == "llama" and not self.refusal
        return ModelStopped(
            matched=matched, terminated=not self.refusal, process_key=question.process_key, error=self.refusal
        )

    async def delete(self, question: ModelQuestion) -> ModelReply:
        self.asked.append(("delete", question))
        return ModelReply(success=not self.refusal, error=self.refusal)

    async def logs(self, question: LogsQuestion) -> LogsReply:
        keys = ["echo#0", "llama#0"]
        if not question.backend:
            return LogsReply(keys=keys)
        if question.backend == "nothing":
            return LogsReply(keys=keys, error="Nothing of nothing has run here.")
        if question.cursor is None:
            return LogsReply(keys=keys, key="echo#0", lines=["one", "two"][-question.lines :], cursor=8)
        self.waits.set()
        await asyncio.wait_for(self.more.wait(), question.wait_s)
        return LogsReply(keys=keys, key="echo#0", lines=["three"], cursor=question.cursor + 6)


class RefusingNode(NodeWithModels):
    """Has the model and unloads nothing; fails on the first request."""

    def __init__(self, *, says_what_runs: bool = True) -> None:
        super().__init__()
        self.refusal = "It does not end."
        self._says_what_runs = says_what_runs

    async def running(self) -> RunningModels:
        return await super().running() if self._says_what_runs else RunningModels(error="The disk is gone.")


class UnloadingNode(NodeWithModels):
    """Models that were unloaded no longer run."""

    async def running(self) -> RunningModels:
        gone = {question.address for what, question in self.asked if what == "unload"}
        return RunningModels(models=[each for each in (await super().running()).models if each.address not in gone])
