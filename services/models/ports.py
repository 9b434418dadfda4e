"""Ports of the models: what the scheduler starts on nodes, and where the results of loads are recorded."""

from typing import Protocol

from nodesmith.domain.deployment import LoadSpec
from nodesmith.domain.replica import Replica, ReportedReplicas


class Loads(Protocol):
    """Starts operations for replicas. Each call may be repeated: an operation that runs already is joined."""

    async def start_load(self, replica: Replica, spec: LoadSpec) -> None: ...
    async def start_unload(self, replica: Replica) -> None: ...


class ReplicaRecords(Protocol):
    """Records what became of replicas. Each call may be repeated, and returns False if it changed nothing."""

    async def loaded(self, op_id: str, address: str, node_seq: int) -> bool:
        """The load succeeded: the replica gets calls at this address. False: it is no longer wanted."""
        ...

    async def failed(self, op_id: str, reason: str) -> bool:
        """The load or unload failed; the scheduler decides what follows."""
        ...

    async def gone(self, op_id: str) -> bool:
        """The unload succeeded, or the load was cancelled: there is no process."""
        ...

    async def reported(self, node_id: str, boot_id: str, number: int, replicas: ReportedReplicas) -> None:
        """The node reports everything that is loaded on it; `number` rises within a boot."""
        ...
