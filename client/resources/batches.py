"""Batches: plan, start, list, pause, resume, cancel, retry; and the hold."""

from nodesmith.client.calls import Call, Mode, Resource, because, endpoint, paged, segment
from nodesmith.contracts.http.batches import BatchAccepted, BatchDetail, BatchPlan, BatchRequest, BatchRetry, BatchView
from nodesmith.contracts.http.hold import HoldView
from nodesmith.contracts.http.shared import Page

PATH = "/batches"


def batch_call(batch_id: str) -> Call[BatchDetail]:
    return Call("GET", f"{PATH}/{segment(batch_id)}", BatchDetail)


def _order(batch_id: str, order: str, reason: str) -> Call[BatchView]:
    return Call("POST", f"{PATH}/{segment(batch_id)}/{order}", BatchView, because(reason))


class Batches(Resource[Mode]):
    def _list(self, *, open_only: bool = False, limit: int = 100, cursor: str | None = None) -> Call[Page[BatchView]]:
        """Batches, newest first."""
        query = {"open": open_only, "limit": limit, "cursor": cursor}
        return Call("GET", PATH, Page[BatchView], query=query)

    list = endpoint(_list)
    each = paged(_list)

    @endpoint
    def plan(self, request: BatchRequest) -> Call[BatchPlan]:
        """What a batch would do on each node; starts nothing."""
        return Call("POST", f"{PATH}/plan", BatchPlan, request)

    @endpoint
    def create(self, request: BatchRequest, *, key: str = "") -> Call[BatchAccepted]:
        """Start a batch; the same key starts it once, however often it is sent."""
        return Call("POST", PATH, BatchAccepted, request, key=key)

    @endpoint
    def get(self, batch_id: str) -> Call[BatchDetail]:
        """One batch with all its nodes."""
        return batch_call(batch_id)

    @endpoint
    def pause(self, batch_id: str, *, reason: str = "") -> Call[BatchView]:
        """Running operations continue; no further ones are started."""
        return _order(batch_id, "pause", reason)

    @endpoint
    def resume(self, batch_id: str, *, reason: str = "") -> Call[BatchView]:
        return _order(batch_id, "resume", reason)

    @endpoint
    def cancel(self, batch_id: str, *, reason: str = "") -> Call[BatchView]:
        """Start nothing more, and cancel what the batch started."""
        return _order(batch_id, "cancel", reason)

    @endpoint
    def retry(self, batch_id: str, retry: BatchRetry | None = None, *, key: str = "") -> Call[BatchAccepted]:
        """Start a new batch over nodes that did not succeed."""
        return Call("POST", f"{PATH}/{segment(batch_id)}/retry", BatchAccepted, retry or BatchRetry(), key=key)


class Hold(Resource[Mode]):
    @endpoint
    def get(self) -> Call[HoldView]:
        """Whether work is held, by whom and why."""
        return Call("GET", "/hold", HoldView)

    @endpoint
    def set(self, reason: str) -> Call[HoldView]:
        """Nothing that has not reached a node starts, until the hold is released."""
        return Call("PUT", "/hold", HoldView, {"reason": reason})

    @endpoint
    def release(self, *, reason: str = "") -> Call[HoldView]:
        return Call("DELETE", "/hold", HoldView, query={"reason": reason})
