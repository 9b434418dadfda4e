"""Where gateways reach the replicas of this node: at the backend itself, or at the forwarder in front of it."""

from typing import Protocol

from nodesmith.agent.run.backend_process import ProcessRecord


class ReplicaAddresses(Protocol):
    """What the node tells the control plane, and what must be done before and after a replica changes."""

    def address_of(self, record: ProcessRecord) -> str:
        """The address to report for a process."""

    async def sync(self) -> None:
        """Make the replicas that are ready reachable at that address, and no others."""

    async def drain(self, key: str) -> None:
        """Send no new connections to a replica that is about to be stopped."""


class DirectAddresses:
    """Gateways connect to the backends themselves."""

    def address_of(self, record: ProcessRecord) -> str:
        return record.address

    async def sync(self) -> None:
        """Do nothing: a backend that listens is reachable."""

    async def drain(self, key: str) -> None:
        """Do nothing: the backend refuses connections when it stops."""
