"""The model scheduler: one snapshot, one plan, then guarded changes. Two at once do no harm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from nodesmith.contracts.temporal.operations import CancelRequest
from nodesmith.domain.operation import Operation, State
from nodesmith.domain.replica import Replica, ReplicaState
from nodesmith.domain.scaling import plan_tick
from nodesmith.domain.tick import Fleet, Plan, PlannedEviction
from nodesmith.services.models.ports import DeploymentTable, Placing, Replicas, Snapshots

log = structlog.stdlib.get_logger(__name__)

SCHEDULER = "model scheduler"


class OpenOperations(Protocol):
    async def find(self, op_id: str) -> Operation | None: ...


class Cancels(Protocol):
    async def cancel(self, workflow_id: str, request: CancelRequest) -> bool: ...


@dataclass(frozen=True)
class ModelScheduler:
    """Keeps every model between its minimum and its maximum.

    It only writes rows: an API process, which has the keys to sign orders, starts the loads and unloads.
    """

    snapshots: Snapshots
    deployments: DeploymentTable
    replicas: Replicas
    placing: Placing
    operations: OpenOperations
    runs: Cancels

    async def tick(self, *, capacity_changed: bool = False) -> Plan:
        """Run one tick and return its plan."""
        await self._record_ends()
        fleet = await self.snapshots.read(capacity_changed=capacity_changed)
        plan = plan_tick(fleet)
        await self._end(plan)
        scaled = await self._place(fleet, plan)
        await self._note(fleet, plan, scaled)
        return plan

    async def _record_ends(self) -> None:
        """Record the end of operations that were ended from outside, such as a terminated run."""
        for replica, state, detail in await self.replicas.ended():
            if state is State.SUCCEEDED and replica.state is ReplicaState.UNLOADING:
                await self.replicas.gone(replica.op_id)
            else:
                await self.replicas.failed(replica.op_id, detail or f"its operation ended: {state}")

    async def _end(self, plan: Plan) -> None:
        for replica in plan.forget:
            await self.replicas.forget(replica)
        for replica in plan.stop:
            await self._stop(replica)
        for planned in plan.drain:
            if await self.replicas.drain(planned):
                log.info("models.drain", replica=planned.replica.key, reason=planned.why)
        for replica in plan.unload:
            await self.replicas.unloading(replica)

    async def _stop(self, replica: Replica) -> None:
        """Cancel a load; its end deletes the row. A row without an operation is deleted at once."""
        operation = await self.operations.find(replica.op_id)
        if operation is None:
            await self.replicas.forget(replica)
            return
        request = CancelRequest(op_id=replica.op_id, by=SCHEDULER, detail="the replica is no longer wanted")
        await self.runs.cancel(operation.workflow_id, request)

    async def _place(self, fleet: Fleet, plan: Plan) -> list[str]:
        """Place what was planned, and evict for what does not fit; returns the models that got a replica."""
        deployments = {each.name: each for each in fleet.deployments}
        placed: list[str] = []
        for planned in plan.place:
            replica = await self.placing.place(deployments[planned.model], planned)
            if replica is not None:
                placed.append(planned.model)
                log.info("models.place", replica=replica.key, node=planned.choice.node_name)
        for eviction in plan.evict:
            await self._evict(eviction)
        return placed

    async def _evict(self, eviction: PlannedEviction) -> None:
        freed = 0
        while freed < eviction.missing:
            victim = await self.placing.evict([eviction.node_id], for_model=eviction.model)
            if victim is None:
                return
            freed += victim.reserved
            log.info("models.evict", replica=victim.key, in_favour_of=eviction.model)

    async def _note(self, fleet: Fleet, plan: Plan, placed: Sequence[str]) -> None:
        scaled = {*placed, *(each.replica.model for each in plan.drain)}
        await self.deployments.note_busy(plan.busy, fleet.now)
        await self.deployments.note_scaled(sorted(scaled), fleet.now)
        await self.deployments.note_satisfied(plan.satisfied)
        await self.deployments.note_unsatisfied(plan.unsatisfied)
