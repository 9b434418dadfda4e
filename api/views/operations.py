"""Views of operations: the entity's fields, with its state in words."""

from typing import TypeVar

from nodesmith.contracts import words
from nodesmith.contracts.http.operations import OperationDetail, OperationEvent, OperationView
from nodesmith.domain.operation import Operation, StateChange

View = TypeVar("View", bound=OperationView)


def operation_view(operation: Operation) -> OperationView:
    return _described(OperationView.model_validate(operation, from_attributes=True), operation)


def operation_detail(operation: Operation) -> OperationDetail:
    """The operation with its timeline."""
    view = OperationDetail.model_validate(operation, from_attributes=True)
    for event in view.timeline:
        _tell(event)
    return _described(view, operation)


def event_view(change: StateChange) -> OperationEvent:
    return _tell(OperationEvent.model_validate(change, from_attributes=True))


def _tell(event: OperationEvent) -> OperationEvent:
    event.message = words.tell(event.state, event.reason, event.detail, until=event.until)
    return event


def _described(view: View, operation: Operation) -> View:
    said = words.describe(operation)
    view.message, view.remedy = said.sentence, said.remedy
    return view
