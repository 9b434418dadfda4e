"""Views: every field comes from the entity, or is one that the API adds. Requests have the fields of their values."""

from dataclasses import fields

import pytest
from pydantic import BaseModel

from nodesmith.contracts.http.access import AuditEntry, InviteRequest, InviteView, SessionView, TokenView
from nodesmith.contracts.http.batches import BatchAccepted, BatchDetail, BatchPlan, BatchRequest, MemberView
from nodesmith.contracts.http.batches import PlannedMember as PlannedMemberView
from nodesmith.contracts.http.galleries import (
    GalleryRequest,
    GalleryView,
    TrustRequest,
    UnusableEntry,
    UpgradeInfo,
    UploadView,
)
from nodesmith.contracts.http.galleries import NodeSuitability as NodeSuitabilityView
from nodesmith.contracts.http.inventory import BackendSpread
from nodesmith.contracts.http.keys import KeysView, NodesBehind, OrderKeyView
from nodesmith.contracts.http.models import UnloadedNode as UnloadedNodeView
from nodesmith.contracts.http.nodes import LifecycleChanged, NodeView
from nodesmith.contracts.http.operation_groups import PendingWork
from nodesmith.contracts.http.operations import InstallRequest, OperationAccepted, OperationDetail, OperationEvent
from nodesmith.contracts.http.sources import SourceRequest, SourceView
from nodesmith.domain.access import Invite, InviteTerms, Session, Token
from nodesmith.domain.audit_change import RecordedChange
from nodesmith.domain.batch import Batch, Member
from nodesmith.domain.gallery import Gallery, GallerySettings, TrustSettings, Upload
from nodesmith.domain.inventory import FleetBackend
from nodesmith.domain.node import Node
from nodesmith.domain.operation import Operation, StateChange
from nodesmith.domain.operation_filter import OpenWork
from nodesmith.domain.running_model import UnloadedNode
from nodesmith.domain.source_settings import SourceSettings, StoredSource
from nodesmith.domain.trust_lists import OutdatedNodes, TrustedKey, TrustedKeys
from nodesmith.gallery.entries import Unusable
from nodesmith.services.batches.batches import AcceptedBatch
from nodesmith.services.batches.planning import BatchPreview, PlannedMember
from nodesmith.services.catalogue.search import NodeSuitability
from nodesmith.services.catalogue.upgrades import AvailableUpgrade
from nodesmith.services.nodes.lifecycle import LifecycleChange
from nodesmith.services.operations.admission import AcceptedOperation
from nodesmith.services.requested_work import RequestedBackend, RequestedBatch


@pytest.mark.parametrize(
    ("view", "entity", "added"),
    [
        (OperationDetail, Operation, {"message", "remedy", "temporal_url"}),
        (OperationEvent, StateChange, {"message"}),
        (BatchDetail, Batch, {"failed_attempts", "failed_nodes", "troubles", "message", "temporal_url"}),
        (MemberView, Member, set()),
        (NodeView, Node, set()),
        (OperationAccepted, AcceptedOperation, set()),
        (BatchAccepted, AcceptedBatch, set()),
        (BatchPlan, BatchPreview, set()),
        (PlannedMemberView, PlannedMember, set()),
        (PendingWork, OpenWork, set()),
        (LifecycleChanged, LifecycleChange, set()),
        (BackendSpread, FleetBackend, set()),
        (GalleryView, Gallery, set()),
        (UploadView, Upload, set()),
        (UnusableEntry, Unusable, set()),
        (UpgradeInfo, AvailableUpgrade, set()),
        (NodeSuitabilityView, NodeSuitability, set()),
        (SourceView, StoredSource, set()),
        (TokenView, Token, set()),
        (SessionView, Session, set()),
        (InviteView, Invite, set()),
        (AuditEntry, RecordedChange, set()),
        (KeysView, TrustedKeys, {"nodes_behind"}),
        (OrderKeyView, TrustedKey, set()),
        (NodesBehind, OutdatedNodes, set()),
        (UnloadedNodeView, UnloadedNode, set()),
    ],
)
def test_every_field_of_a_view_is_on_its_entity_or_added_by_the_api(
    view: type[BaseModel], entity: type, added: set[str]
) -> None:
    """A missing attribute would silently become the default of the field."""
    assert set(view.model_fields) - {*dir(entity), *(field.name for field in fields(entity))} == added


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (InstallRequest, RequestedBackend),
        (BatchRequest, RequestedBatch),
        (InviteRequest, InviteTerms),
        (GalleryRequest, GallerySettings),
        (TrustRequest, TrustSettings),
        (SourceRequest, SourceSettings),
    ],
)
def test_request_and_the_value_that_a_use_case_takes_have_the_same_fields(shape: type[BaseModel], value: type) -> None:
    assert set(shape.model_fields) == {field.name for field in fields(value)}


@pytest.mark.parametrize(("shape", "value"), [(InstallRequest, RequestedBackend), (BatchRequest, RequestedBatch)])
def test_request_for_work_and_its_value_have_the_same_defaults(shape: type[BaseModel], value: type) -> None:
    """Otherwise an automatic upgrade would mean something else than a person's."""
    given, meant = shape(), value()
    for name in shape.model_fields:
        default, own = getattr(given, name), getattr(meant, name)
        assert own == (tuple(default) if isinstance(default, list) else default), name
