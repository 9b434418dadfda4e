"""What the application is made of, ready-made: `main` builds it from settings, tests build it themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Request

from api.failures import FailedSignIns
from api.galleries import GalleryParts
from api.health import Health
from api.heartbeats import HttpHeartbeats
from api.stream import EventHub
from contracts.operation_http import OperationView
from gallery.catalogue import Catalogue
from services.access import Access
from services.admission import Admission
from services.batches import BatchDesk
from services.bulk import Bulk
from services.cancellation import Cancellation
from services.holding import Holding
from services.inventory import Inventory
from services.invites import Invites
from services.lifecycle import Lifecycle
from services.models import NodeModels
from services.ports import NodeLink
from services.registration import Registration
from services.stopping import Stopping
from store.audit import AuditTrail
from store.batches import Batches
from store.history import History
from store.labels import Labels
from store.node_list import NodeList
from store.nodes import Nodes
from store.operations import OperationTable
from store.overrides import Overrides
from store.sign_in import SignIn

Operation = TypeVar("Operation", bound=OperationView)


@dataclass(frozen=True)
class Parts:
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
    bulk: Bulk
    stopping: Stopping
    models: NodeModels
    invites: Invites
    batches: Batches
    desk: BatchDesk
    holding: Holding
    sign_in: SignIn
    catalogue: Catalogue
    gallery: GalleryParts
    artifacts: Path
    """the folder behind /artifacts"""
    link: NodeLink
    events: EventHub
    heartbeats: HttpHeartbeats
    health: Health
    access: Access
    audit: AuditTrail
    failures: FailedSignIns
    run_url: Callable[[str, str], str]
    """workflow id and run id -> where the Temporal Web UI shows that run"""
    temporal_ui_url: str = ""
    patience_s: float = 120.0
    """how long LocalAI's synchronous routes wait for an end"""

    def with_link(self, view: Operation) -> Operation:
        if not view.run_id:
            return view
        return view.model_copy(update={"temporal_url": self.run_url(view.workflow_id, view.run_id)})


def parts_of(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


async def _parts(request: Request) -> Parts:
    """Asynchronous, because what is not is called in a thread, which every request would wait for."""
    return parts_of(request)


PartsOf = Annotated[Parts, Depends(_parts)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        description="The same key with the same request is the same job, however often it is sent within 7 days; "
        "with another request it is a 409.",
    ),
]
