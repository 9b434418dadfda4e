"""Pages of the catalogue with the open operations of its backends, for our own routes and LocalAI's."""

from collections.abc import Mapping, Sequence

from nodesmith.api.dependencies import Dependencies
from nodesmith.api.views.catalogue import catalogue_page
from nodesmith.contracts.http.galleries import CatalogueEntry, CataloguePage
from nodesmith.domain.identity import family_of
from nodesmith.domain.operation import Operation, State
from nodesmith.domain.operation_filter import OperationFilter
from nodesmith.services.catalogue.search import Place, Search

_MOST_OPEN_OPERATIONS = 500
"""open operations that mark the catalogue, the oldest; `GET /api/v1/operations` has them all"""


async def marked_page(
    deps: Dependencies, search: Search, after: Place | None = None
) -> tuple[CataloguePage, Place | None]:
    """One page, by its number or after a place, and the place where it ends if there is more."""
    page, following = await deps.gallery.catalogue_service.page(search, after)
    found = catalogue_page(page)
    if found.stale:
        return found, following
    open_operations = await deps.history.list_open(OperationFilter(), limit=_MOST_OPEN_OPERATIONS)
    return _with_open_operations(found, open_operations), following


def _with_open_operations(page: CataloguePage, open_operations: Sequence[Operation]) -> CataloguePage:
    """Mark the catalogue entries that have an open operation on any node."""
    open_by_name: dict[str, list[Operation]] = {}
    for operation in open_operations:
        open_by_name.setdefault(family_of(operation.backend), []).append(operation)
    busy = {entry.id: found for entry in page.backends if (found := _oldest_operation(entry, open_by_name))}
    jobs = {key: found.batch_id or found.op_id for key, found in busy.items()}
    in_work = [_marked_busy(entry, _oldest_operation(entry, open_by_name)) for entry in page.backends]
    kinds = {key: _task_of(found) for key, found in busy.items()}
    return page.model_copy(update={"backends": in_work, "processingBackends": jobs, "taskTypes": kinds})


def _oldest_operation(entry: CatalogueEntry, open_by_name: Mapping[str, Sequence[Operation]]) -> Operation | None:
    """Return the oldest open operation; one that names a version counts for that version only."""
    found = open_by_name.get(family_of(entry.name), ())
    return next((each for each in found if not each.version or each.version == entry.version), None)


def _marked_busy(entry: CatalogueEntry, operation: Operation | None) -> CatalogueEntry:
    if operation is None:
        return entry
    is_removal = operation.kind.rules.removes
    return entry.model_copy(
        update={"processing": True, "jobID": operation.batch_id or operation.op_id, "isDeletion": is_removal}
    )


def _task_of(operation: Operation) -> str:
    if operation.state in (State.QUEUED, State.WAITING):
        return "Waiting"
    return "Deletion" if operation.kind.rules.removes else "Installation"
