"""The dependencies of the routes: `main` builds them from settings, tests build their own."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Request
from fastapi import Path as PathParameter

from nodesmith.api.gallery_dependencies import GalleryDependencies
from nodesmith.api.health import Health
from nodesmith.api.heartbeats import HttpHeartbeats
from nodesmith.api.login_throttle import LoginFailures
from nodesmith.api.order_renewal import OrderRenewal
from nodesmith.api.stream import EventHub
from nodesmith.contracts.http.operations import OperationView
from nodesmith.contracts.names import PlainName
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.runtime.keyring import Keyring
from nodesmith.services.access.callers import Access, KnownCredentials
from nodesmith.services.access.invites import Invites
from nodesmith.services.batches.batches import BatchService
from nodesmith.services.models.deploying import ModelService
from nodesmith.services.models.starter import ReplicaStarter
from nodesmith.services.nodes.backend_stop import BackendStop
from nodesmith.services.nodes.inventory import Inventory
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.registration import Registration
from nodesmith.services.nodes.running_models import NodeModels
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.bulk_actions import BulkActions
from nodesmith.services.operations.cancellation import Cancellation
from nodesmith.services.operations.hold import HoldService
from nodesmith.services.ports import NodeLink
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.access.sign_in import SignIn
from nodesmith.store.models.holds import Holds as CallHolds
from nodesmith.store.models.reading import DeploymentReader
from nodesmith.store.nodes.labels import Labels
from nodesmith.store.nodes.node_list import NodeList
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.nodes.overrides import Overrides
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.history import History
from nodesmith.store.operations.idempotency import IdempotencyKeys
from nodesmith.store.operations.operations import OperationTable

Operation = TypeVar("Operation", bound=OperationView)


@dataclass(frozen=True)
class Dependencies:
    """The collaborators of the routes."""

    nodes: Nodes
    node_list: NodeList
    labels: Labels
    overrides: Overrides
    inventory: Inventory
    operations: OperationTable
    history: History
    admission: Admission
    registration: Registration
    lifecycle: Lifecycle
    cancellation: Cancellation
    bulk: BulkActions
    backend_stop: BackendStop
    models: NodeModels
    deployments: DeploymentReader
    model_service: ModelService
    call_holds: CallHolds
    starter: ReplicaStarter
    invites: Invites
    keyring: Keyring
    renewal: OrderRenewal
    prepared: "asyncio.Task[None]"
    """done when PostgreSQL is migrated and our root key is the installation's; else it ends with `ForeignRoot`"""
    batches: Batches
    batch_service: BatchService
    hold_service: HoldService
    sign_in: SignIn
    catalogue: Catalogue
    gallery: GalleryDependencies
    artifacts: Path
    """the folder that /artifacts serves"""
    link: NodeLink
    events: EventHub
    heartbeats: HttpHeartbeats
    health: Health
    access: Access
    keys: IdempotencyKeys
    audit: AuditTrail
    failures: LoginFailures
    credentials: KnownCredentials
    run_url: Callable[[str, str], str]
    """workflow id and run id -> URL of that run in the Temporal Web UI"""
    temporal_ui_url: str = ""
    serves_temporal_ui: bool = False
    """true: the Web UI at that address is behind our sign-in"""
    patience_s: float = 120.0
    """how long LocalAI's synchronous routes wait for the end of an operation"""
    key_patience_s: float = 5.0
    """how long a repeated request waits for the response to the first; after that it is carried out again"""

    def with_link(self, view: Operation) -> Operation:
        if not view.run_id:
            return view
        return view.model_copy(update={"temporal_url": self.run_url(view.workflow_id, view.run_id)})


def dependencies_of(request: Request) -> Dependencies:
    deps: Dependencies = request.app.state.deps
    return deps


async def _get_dependencies(request: Request) -> Dependencies:
    """Asynchronous, because FastAPI runs synchronous dependencies in a thread, which would delay every request."""
    return dependencies_of(request)


Deps = Annotated[Dependencies, Depends(_get_dependencies)]
BackendName = Annotated[
    PlainName,
    PathParameter(min_length=1, max_length=255, description="Name of the backend, or `gallery@name`."),
]
KEY_HEADER = "Idempotency-Key"
LONGEST_KEY = 255
ABOUT_KEYS = (
    "A request that is repeated with the same key within 7 days is carried out once and gets the same response. "
    "The same key with a different request is a 409."
)
IdempotencyKey = Annotated[str | None, Header(alias=KEY_HEADER, max_length=LONGEST_KEY, description=ABOUT_KEYS)]
"""for a route that starts a job: the job id is reserved with the key"""
