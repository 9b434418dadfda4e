"""Where the results of loads go, in memory."""

from nodesmith.domain.replica import ReportedReplicas


class RecordedReplicas:
    """Implements `services.models.ports.ReplicaRecords`."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.reports: list[tuple[str, str, int, ReportedReplicas]] = []

    async def loaded(self, op_id: str, address: str, node_seq: int) -> bool:
        self.calls.append(("loaded", op_id, address, node_seq))
        return True

    async def failed(self, op_id: str, reason: str) -> bool:
        self.calls.append(("failed", op_id, reason))
        return True

    async def gone(self, op_id: str) -> bool:
        self.calls.append(("gone", op_id))
        return True

    async def reported(self, node_id: str, boot_id: str, number: int, replicas: ReportedReplicas) -> None:
        self.reports.append((node_id, boot_id, number, replicas))
