"""What callers ask for: one operation or one batch. The API turns HTTP requests into these."""

from collections.abc import Sequence
from dataclasses import dataclass

from nodesmith.contracts.nats.messages import UpgradePolicy
from nodesmith.domain.kinds import Kind


@dataclass(frozen=True, kw_only=True)
class RequestedBackend:
    """What to do with a backend: by gallery name, or by uri. The digest of an idempotency key covers every field."""

    backend: str = ""
    """name of the backend, or gallery@name"""
    uri: str = ""
    name: str = ""
    """name under which an install by uri is stored"""
    alias: str = ""
    version: str = ""
    """empty: the newest"""
    sha256: str = ""
    force: bool = False
    """do it even if it is installed already"""
    reason: str = ""
    on_drained: bool = False
    """allow a drained node"""
    start: bool = False
    """start the backend afterwards"""
    upgrade_policy: UpgradePolicy = UpgradePolicy.RESTART
    wait_for_node_s: float | None = None
    deadline_s: float | None = None
    max_attempts: int | None = None


@dataclass(frozen=True, kw_only=True)
class RequestedBatch(RequestedBackend):
    """What to do, and on which nodes: `nodes`, `selector` or `everywhere`."""

    kind: Kind = Kind.INSTALL
    nodes: Sequence[str] = ()
    """ids or names of the nodes"""
    selector: str = ""
    everywhere: bool = False
    max_parallel: int = 20
    """operations that run at the same time; 0: no limit"""
    max_failures: int | None = None
    """None: the default of the kind"""
    count_attempts: bool = False
    """`max_failures` counts every failed attempt, not only nodes that gave up"""
