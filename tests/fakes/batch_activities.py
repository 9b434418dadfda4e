"""A simulated fleet for batch tests: admission and operation rows in memory."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle

from nodesmith.contracts.temporal import batches as names
from nodesmith.contracts.temporal.batches import (
    AdmitMembers,
    Admitted,
    BatchInput,
    BatchMember,
    BatchProgress,
    BatchState,
    CancelMembers,
    CloseBatch,
    MemberReady,
    MembersWatched,
    Target,
    WatchMembers,
    member_op_id,
)
from nodesmith.contracts.temporal.operations import Intent
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.operation import State
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.workflows.batch import Batch
from tests.deadlines import HANGS_S
from tests.fakes.workers import EndingWorker

Handle = WorkflowHandle[Batch, BatchProgress]


class Fleet:
    """Simulates admission and the rows of the operations."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.most_running = 0
        self.cancelled: list[str] = []
        self.cancels: list[CancelMembers] = []
        self.attempts: dict[str, int] = {}
        """failed attempts, by operation"""
        self.closes: list[CloseBatch] = []
        self.absent_run = ""
        """workflow id of members that go away"""
        self.verdicts: dict[str, BatchMember] = {}
        self._states: dict[str, State] = {}
        self._away: set[str] = set()
        self._names: dict[str, str] = {}
        self._watched: tuple[str, ...] = ()
        self.may_close = asyncio.Event()
        """cleared: PostgreSQL is slow to write the batch row"""
        self.may_close.set()
        self.is_closing = asyncio.Event()
        self._changed = asyncio.Condition()

    async def settle(self, node: str, state: State) -> None:
        """End the operation of that node."""
        async with self._changed:
            self._states[self._names[node]] = state
            self._changed.notify_all()

    async def fail_attempt(self, node: str) -> None:
        """Fail an attempt of that node; the operation stays open."""
        async with self._changed:
            op_id = self._names[node]
            self.attempts[op_id] = self.attempts.get(op_id, 0) + 1
            self._changed.notify_all()

    async def go_away(self, node: str) -> None:
        async with self._changed:
            self._away.add(self._names[node])
            self._changed.notify_all()

    def returned(self, node: str) -> MemberReady:
        return MemberReady(op_id=self._names[node], workflow_id=self.absent_run)

    async def until(self, condition: Callable[["Fleet"], bool]) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: condition(self)), HANGS_S)

    async def until_asked(self, *nodes: str) -> None:
        await self.until(lambda fleet: set(nodes) <= set(fleet.asked))

    async def until_watched(self, *nodes: str) -> None:
        """Wait until the batch watches exactly these members."""
        await self.until(lambda fleet: {fleet._names[node] for node in nodes} == set(fleet._watched))

    async def until_state(self, state: BatchState) -> None:
        await self.until(lambda fleet: any(close.state is state for close in fleet.closes))

    def running(self) -> int:
        return sum(1 for op_id in self._names.values() if op_id not in self._states)

    @activity.defn(name=names.OPEN_BATCH)
    async def open_batch(self, batch: BatchInput) -> None:
        assert batch.targets

    @activity.defn(name=names.ADMIT_MEMBERS)
    async def admit_members(self, asked: AdmitMembers) -> Admitted:
        async with self._changed:
            members = tuple(self._admit(asked.batch, target) for target in asked.targets)
            self.most_running = max(self.most_running, self.running())
            self._changed.notify_all()
            return Admitted(members=members)

    def _admit(self, batch: BatchInput, target: Target) -> BatchMember:
        self.asked.append(target.node_name)
        if target.node_name in self.verdicts:
            return self.verdicts[target.node_name].model_copy(update={"node_id": target.node_id})
        op_id = member_op_id(batch.batch_id, target.node_id)
        self._names[target.node_name] = op_id
        return BatchMember(node_id=target.node_id, node_name=target.node_name, op_id=op_id)

    @activity.defn(name=names.WATCH_MEMBERS)
    async def watch_members(self, watch: WatchMembers) -> MembersWatched:
        def news() -> bool:
            changed = away() != watch.away or attempts() != (watch.attempts or {})
            return changed or any(op_id in self._states for op_id in watch.op_ids)

        def attempts() -> dict[str, int]:
            counted = {} if watch.attempts is None else self.attempts
            return {op_id: number for op_id, number in counted.items() if op_id in watch.op_ids}

        def away() -> tuple[str, ...]:
            return tuple(sorted(self._away & set(watch.op_ids) - self._states.keys()))

        async with self._changed:
            self._watched = watch.op_ids
            self._changed.notify_all()
            while not news():
                activity.heartbeat()
                try:
                    await asyncio.wait_for(self._changed.wait(), 1)
                except TimeoutError:
                    continue
            ended = {op_id: self._states[op_id] for op_id in watch.op_ids if op_id in self._states}
            return MembersWatched(ended=ended, away=away(), attempts=attempts())

    @activity.defn(name=names.CANCEL_MEMBERS)
    async def cancel_members(self, cancel: CancelMembers) -> None:
        async with self._changed:
            self.cancels.append(cancel)
            self.cancelled.extend(cancel.op_ids)
            self._states.update(dict.fromkeys(cancel.op_ids, State.CANCELLED))
            self._changed.notify_all()

    @activity.defn(name=names.CLOSE_BATCH)
    async def close_batch(self, close: CloseBatch) -> None:
        self.is_closing.set()
        await self.may_close.wait()
        async with self._changed:
            self.closes.append(close)
            self._changed.notify_all()


async def start(client: Client, queue: str, nodes: int, **changes: Any) -> Handle:
    """Start a batch over `n0`, `n1` ... on that queue."""
    batch = BatchInput(
        batch_id=new_op_id(),
        wanted=Intent(backend="echo", family="echo", version="2"),
        targets=tuple(Target(node_id=f"id-{number}", node_name=f"n{number}") for number in range(nodes)),
        created_at=datetime.now(UTC),
        requested_by="ada",
        **changes,
    )
    await TemporalRuns(client, queue=queue).start_batch(batch)
    return client.get_workflow_handle_for(Batch.run, names.batch_workflow_id(batch.batch_id))


@asynccontextmanager
async def worker_of(client: Client, fleet: Fleet) -> AsyncIterator[str]:
    """Run a batch worker on this fleet; yields its queue."""
    queue = f"test-{uuid.uuid4()}"
    activities: list[Callable[..., Any]] = [
        fleet.open_batch,
        fleet.admit_members,
        fleet.watch_members,
        fleet.cancel_members,
        fleet.close_batch,
    ]
    async with EndingWorker(client, task_queue=queue, workflows=[Batch], activities=activities):
        yield queue
