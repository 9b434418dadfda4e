"""Views: every field comes from the entity, or is one that the API adds."""

import pytest
from pydantic import BaseModel

from nodesmith.contracts.http.batches import BatchDetail, MemberView
from nodesmith.contracts.http.nodes import NodeView
from nodesmith.contracts.http.operations import OperationDetail, OperationEvent
from nodesmith.domain.batch import Batch, Member
from nodesmith.domain.node import Node
from nodesmith.domain.operation import Operation, StateChange


@pytest.mark.parametrize(
    ("view", "entity", "added"),
    [
        (OperationDetail, Operation, {"message", "remedy", "temporal_url"}),
        (OperationEvent, StateChange, {"message"}),
        (BatchDetail, Batch, {"failed_attempts", "failed_nodes", "troubles", "message", "temporal_url"}),
        (MemberView, Member, set()),
        (NodeView, Node, set()),
    ],
)
def test_every_field_of_a_view_is_on_its_entity_or_added_by_the_api(
    view: type[BaseModel], entity: type, added: set[str]
) -> None:
    """A missing attribute would silently become the default of the field."""
    assert {name for name in view.model_fields if not hasattr(entity, name)} == added
