"""Conditions of a filter over operations, for every list of them."""

from sqlalchemy import ColumnElement, or_

from nodesmith.domain.identity import family_of
from nodesmith.domain.operation_filter import OperationFilter
from nodesmith.store.tables.core import OperationRow


def filter_conditions(wanted: OperationFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.node is not None:
        conditions.append(or_(OperationRow.node_id == wanted.node, OperationRow.node_name == wanted.node))
    if wanted.backend is not None:
        names = (OperationRow.backend == wanted.backend, OperationRow.family == family_of(wanted.backend))
        conditions.append(or_(*names))
    if wanted.state is not None:
        conditions.append(OperationRow.state == wanted.state.value)
    if wanted.batch is not None:
        conditions.append(OperationRow.batch_id == wanted.batch)
    return conditions
