"""Replicas of a simulated node: loaded after some seconds, at addresses where nothing listens."""

import asyncio

from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Done, Job
from nodesmith.agent.run.replica_reports import report_number
from nodesmith.contracts.nats.loads import ReplicaReport
from nodesmith.contracts.nats.messages import Command, Installed
from nodesmith.domain.operation import Phase, Reason
from nodesmith.domain.replica import ReplicaState, process_key

FIRST_PORT, PORTS = 21000, 1000


class SimulatedReplicas:
    """Loads, unloads and reports replicas without processes."""

    def __init__(self, load_seconds: float) -> None:
        self._load_seconds = load_seconds
        self._running: dict[str, tuple[str, ReplicaReport]] = {}
        """key -> family and report"""
        self._number = report_number()

    def next_report(self) -> tuple[int, list[ReplicaReport]]:
        self._number = max(self._number + 1, report_number())
        return self._number, [report for _, report in self._running.values()]

    async def perform(self, job: Job, installed: Installed | None) -> Done:
        key = process_key(job.command.model_id, job.command.replica_index)
        if job.command.kind.rules.removes:
            is_gone = self._running.pop(key, None) is not None
            return Done(changed=is_gone, stopped=[key] if is_gone else [], report=self._number)
        if installed is None or job.command.load is None:
            raise OperationFailed(Reason.NOT_INSTALLED, f"{job.command.family} is not installed on this node.")
        job.gauge.move(Phase.LOADING)
        await asyncio.sleep(self._load_seconds)
        job.commit()
        report = _report(job.command, self._free_port())
        self._running[key] = (job.command.family, report)
        return Done(
            changed=True, before=installed, after=installed, addresses={key: report.address}, report=self._number
        )

    def stop_all(self, family: str) -> list[str]:
        """End the replicas of a removed backend, and return their keys."""
        stopped = [key for key, (of, _) in self._running.items() if of == family]
        for key in stopped:
            del self._running[key]
        return stopped

    def _free_port(self) -> int:
        taken = {report.address for _, report in self._running.values()}
        ports = range(FIRST_PORT, FIRST_PORT + PORTS)
        return next((port for port in ports if f"127.0.0.1:{port}" not in taken), FIRST_PORT)


def _report(command: Command, port: int) -> ReplicaReport:
    return ReplicaReport(
        model=command.model_id,
        index=command.replica_index,
        revision=command.load.revision if command.load is not None else 0,
        address=f"127.0.0.1:{port}",
        state=ReplicaState.LOADED,
        op_id=command.op_id,
    )
