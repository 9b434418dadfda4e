"""Operations: start, list, cancel, retry, dismiss."""

from datetime import datetime

from nodesmith.client.calls import Call, Mode, Resource, because, endpoint, paged, segment
from nodesmith.contracts.http.operation_groups import BulkBody, BulkResult, HistoryCleared, PendingView
from nodesmith.contracts.http.operations import (
    CancelAccepted,
    CancelBody,
    OperationAccepted,
    OperationBody,
    OperationDetail,
    OperationPage,
)
from nodesmith.domain.operation import State
from nodesmith.domain.operation_filter import OperationScope

PATH = "/operations"


def operation_call(op_id: str) -> Call[OperationDetail]:
    return Call("GET", f"{PATH}/{segment(op_id)}", OperationDetail)


class Operations(Resource[Mode]):
    def _list(
        self,
        *,
        scope: OperationScope | str = OperationScope.LIVE,
        node: str | None = None,
        backend: str | None = None,
        state: State | str | None = None,
        batch: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Call[OperationPage]:
        """Operations, newest first; with `scope="ended"` the latest end first."""
        query = {"scope": str(scope), "node": node, "backend": backend, "state": state and str(state), "batch": batch}
        times = {"since": since, "until": until}
        return Call("GET", PATH, OperationPage, query={**query, **times, "limit": limit, "cursor": cursor})

    list = endpoint(_list)
    each = paged(_list)

    @endpoint
    def create(self, request: OperationBody, *, key: str = "") -> Call[OperationAccepted]:
        """Start an operation; the same key starts it once, however often it is sent."""
        return Call("POST", PATH, OperationAccepted, request, key=key)

    @endpoint
    def get(self, op_id: str) -> Call[OperationDetail]:
        """One operation with its timeline."""
        return operation_call(op_id)

    @endpoint
    def cancel(self, op_id: str, order: CancelBody | None = None) -> Call[CancelAccepted]:
        """Request a cancel: durable once this has returned."""
        return Call("POST", f"{PATH}/{segment(op_id)}/cancel", CancelAccepted, order or CancelBody())

    @endpoint
    def retry(self, op_id: str, *, reason: str = "", key: str = "") -> Call[OperationAccepted]:
        """Start a new operation with the intent of one that did not succeed."""
        return Call("POST", f"{PATH}/{segment(op_id)}/retry", OperationAccepted, because(reason), key=key)

    @endpoint
    def dismiss(self, op_id: str, *, reason: str = "") -> Call[OperationDetail]:
        """Remove an operation that ended badly from the live list."""
        return Call("POST", f"{PATH}/{segment(op_id)}/dismiss", OperationDetail, query={"reason": reason})

    @endpoint
    def cancel_many(self, order: BulkBody) -> Call[BulkResult]:
        """Cancel every open operation that matches; with `preview`, only list them."""
        return Call("POST", f"{PATH}/cancel", BulkResult, order)

    @endpoint
    def dismiss_many(self, order: BulkBody) -> Call[BulkResult]:
        """Dismiss every operation that matches and ended badly; with `preview`, only list them."""
        return Call("POST", f"{PATH}/dismiss", BulkResult, order)

    @endpoint
    def pending(self) -> Call[PendingView]:
        """Open operations per node and per backend, and what they wait for."""
        return Call("GET", f"{PATH}/pending", PendingView)

    @endpoint
    def clear_history(self, *, reason: str = "") -> Call[HistoryCleared]:
        """Empty the history for all users."""
        return Call("DELETE", f"{PATH}/history", HistoryCleared, query={"reason": reason})
