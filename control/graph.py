"""The object graph of the control plane: the adapters and use cases that the API and the worker share.

Each part is built once, when it is first used, so a process has only the parts that it needs.
"""

from functools import cached_property

from temporalio.client import Client

from nodesmith.bus.commands import NodeClient
from nodesmith.bus.connection import Bus
from nodesmith.bus.presence import Presence
from nodesmith.bus.reports import ReportHub
from nodesmith.contracts.temporal.models import MODEL_SCHEDULER_ID
from nodesmith.contracts.temporal.operations import CONTROL_QUEUE, FleetWatch
from nodesmith.runtime.monitor_run import MODEL_SCHEDULER, MonitorRun
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.batches.repair import BatchRepair
from nodesmith.services.models.scheduler import ModelScheduler
from nodesmith.services.nodes.identity_claims import DuplicateIdentities
from nodesmith.services.nodes.inventory import Inventory
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.liveness import Liveness
from nodesmith.services.nodes.reachability import ReachabilityTracker
from nodesmith.services.nodes.revocation import Revocation
from nodesmith.services.operations.monitor_guard import MODEL_SCHEDULER as SCHEDULER_NAME
from nodesmith.services.operations.monitor_guard import MonitorGuard
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.operations.orders import Orders
from nodesmith.services.operations.repair import Repair
from nodesmith.services.operations.retention import Retention
from nodesmith.services.operations.verified_records import VerifiedRecords
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.clock import utc_now
from nodesmith.store.database import Database
from nodesmith.store.models.deployments import Deployments
from nodesmith.store.models.holds import Holds
from nodesmith.store.models.placing import ReplicaPlacing
from nodesmith.store.models.replicas import ReplicaTable
from nodesmith.store.models.snapshots import FleetSnapshots
from nodesmith.store.models.wakeups import PlacementFeed
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.labels import Labels
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.nats_credentials import NatsCredentials
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.history import History
from nodesmith.store.operations.monitor_ticks import MonitorTicks
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.permits import PermitTable


class ControlGraph:
    """The graph of a worker; `ApiGraph` adds what needs secrets."""

    def __init__(
        self, settings: ControlSettings, database: Database, bus: Bus, temporal: Client, *, queue: str = CONTROL_QUEUE
    ) -> None:
        self.settings = settings
        self.database = database
        self.bus = bus
        self.temporal = temporal
        self.runs = TemporalRuns(temporal, queue=queue)
        self.clock = utc_now

    # PostgreSQL -----------------------------------------------------------------------------------------------

    @cached_property
    def nodes(self) -> Nodes:
        return Nodes(self.database)

    @cached_property
    def node_life(self) -> NodeLifecycle:
        return NodeLifecycle(self.database)

    @cached_property
    def labels(self) -> Labels:
        return Labels(self.database)

    @cached_property
    def nats_credentials(self) -> NatsCredentials:
        return NatsCredentials(self.database)

    @cached_property
    def inventory_table(self) -> InventoryTable:
        return InventoryTable(self.database)

    @cached_property
    def operations(self) -> OperationTable:
        return OperationTable(self.database)

    @cached_property
    def permits(self) -> PermitTable:
        return PermitTable(self.database)

    @cached_property
    def history(self) -> History:
        return History(self.database)

    @cached_property
    def batches(self) -> Batches:
        return Batches(self.database)

    @cached_property
    def audit(self) -> AuditTrail:
        return AuditTrail(self.database)

    @cached_property
    def monitor_ticks(self) -> MonitorTicks:
        return MonitorTicks(self.database)

    @cached_property
    def deployments(self) -> Deployments:
        return Deployments(self.database)

    @cached_property
    def replicas(self) -> ReplicaTable:
        return ReplicaTable(self.database)

    @cached_property
    def call_holds(self) -> Holds:
        return Holds(self.database)

    @cached_property
    def fleet_snapshots(self) -> FleetSnapshots:
        return FleetSnapshots(self.database)

    @cached_property
    def placement_feed(self) -> PlacementFeed:
        return PlacementFeed(self.database, every_s=self.settings.model_tick.total_seconds())

    # NATS -----------------------------------------------------------------------------------------------------

    @cached_property
    def reports(self) -> ReportHub:
        """Receives reports once it is started."""
        return ReportHub(self.bus)

    @cached_property
    def presence(self) -> Presence:
        return Presence(self.bus)

    @cached_property
    def link(self) -> ReachabilityTracker:
        """Has to be closed."""
        return ReachabilityTracker(NodeClient(self.bus, self.reports), self.nodes, self.clock)

    # use cases ------------------------------------------------------------------------------------------------

    @property
    def orders(self) -> Orders | None:
        """None in a worker, which has no keys: the API signs the orders of a batch before the batch starts."""
        return None

    @cached_property
    def lock(self) -> OperationLock:
        return OperationLock(self.operations, self.runs, self.orders)

    @cached_property
    def revocation(self) -> Revocation:
        """Records revocations; only an API with the operator's keys tells the NATS server."""
        return Revocation(self.nats_credentials, None, self.clock)

    @cached_property
    def inventory(self) -> Inventory:
        return Inventory(self.inventory_table, self.link, self.clock)

    @cached_property
    def lifecycle(self) -> Lifecycle:
        return Lifecycle(self.nodes, self.node_life, self.runs, self.presence, self.clock, self.revocation)

    @cached_property
    def liveness(self) -> Liveness:
        duplicates = DuplicateIdentities(self.node_life, self.presence)
        return Liveness(
            self.nodes,
            self.operations,
            self.runs,
            self.link,
            duplicates,
            self.inventory_table,
            self.clock,
            self.replicas,
        )

    @cached_property
    def records(self) -> VerifiedRecords:
        return VerifiedRecords(self.operations, self.bus.signatures, self.replicas)

    @cached_property
    def repair(self) -> Repair:
        return Repair(self.nodes, self.operations, self.runs, self.link, self.records, self.clock)

    @cached_property
    def batch_repair(self) -> BatchRepair:
        return BatchRepair(self.batches, self.runs, self.clock)

    @cached_property
    def retention(self) -> Retention:
        return Retention(self.history, self.audit, self.clock, self.settings.history_kept)

    @cached_property
    def monitor_run(self) -> MonitorRun:
        return MonitorRun(self.temporal)

    @cached_property
    def monitor_guard(self) -> MonitorGuard:
        watch = FleetWatch(tick=self.settings.fleet_tick)
        return MonitorGuard(self.monitor_ticks, self.monitor_run, watch, self.settings.monitor_silence)

    # models ---------------------------------------------------------------------------------------------------

    @cached_property
    def model_scheduler(self) -> ModelScheduler:
        return ModelScheduler(
            snapshots=self.fleet_snapshots,
            deployments=self.deployments,
            replicas=self.replicas,
            placing=ReplicaPlacing(self.database),
            operations=self.operations,
            runs=self.runs,
        )

    @cached_property
    def scheduler_ticks(self) -> MonitorTicks:
        return MonitorTicks(self.database, MODEL_SCHEDULER_ID)

    @cached_property
    def scheduler_guard(self) -> MonitorGuard:
        return MonitorGuard(
            self.scheduler_ticks,
            MonitorRun(self.temporal, MODEL_SCHEDULER),
            FleetWatch(tick=self.settings.model_tick),
            self.settings.monitor_silence,
            name=SCHEDULER_NAME,
        )
