"""Reports of the replicas on this node: a number that rises over all boots, and the list."""

import time

from nodesmith.agent.run.replica_addresses import DirectAddresses, ReplicaAddresses
from nodesmith.agent.run.supervisor import ProcessKeeper, Supervisor
from nodesmith.contracts.nats.loads import ReplicaReport
from nodesmith.domain.replica import ReplicaState


class ReplicaReporter:
    """Number and list are taken together: a replica that is ready now is in every report after `last`."""

    def __init__(self, supervisor: Supervisor, reachable: ReplicaAddresses | None = None) -> None:
        self._supervisor = supervisor
        self._reachable = reachable or DirectAddresses()
        self.last = report_number()

    def next(self) -> tuple[int, list[ReplicaReport]]:
        self.last = max(self.last + 1, report_number())
        replicas = [keeper for keeper in self._supervisor.everything() if keeper.record.load is not None]
        return self.last, [_report(keeper, self._reachable.address_of(keeper.record)) for keeper in replicas]


def report_number() -> int:
    """Return a number that is higher than all earlier ones, also of earlier boots, while the clock is right."""
    return time.time_ns() // 1_000_000


def _report(keeper: ProcessKeeper, address: str) -> ReplicaReport:
    record = keeper.record
    return ReplicaReport(
        model=record.model_id,
        index=record.replica,
        revision=record.load.revision if record.load is not None else 0,
        address=address,
        state=_state(keeper),
        op_id=record.op_id,
    )


def _state(keeper: ProcessKeeper) -> ReplicaState:
    if keeper.is_stopping:
        return ReplicaState.UNLOADING
    return ReplicaState.LOADED if keeper.is_ready and keeper.is_alive else ReplicaState.LOADING
