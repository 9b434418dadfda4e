"""The event stream (SSE): state changes with a number, progress ticks without."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Header, Query
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from nodesmith.api.auth import Bearer, Session, identify, viewer
from nodesmith.api.dependencies import Dependencies, Deps
from nodesmith.api.problems import responses
from nodesmith.api.stream import IsAdmitted, StreamFilter
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.services.access.callers import Access

log = structlog.stdlib.get_logger(__name__)

router = APIRouter(prefix="/api/v1/events", tags=["events"], dependencies=[Depends(viewer)])

_BIGGEST = 2**63 - 1

LastEventIdInUrl = Annotated[
    int | None,
    Query(ge=0, le=_BIGGEST, alias="last_event_id", description="The same, for clients that cannot send the header."),
]
LastEventId = Annotated[int | None, Header(ge=0, le=_BIGGEST, description="Continue after this number.")]
OpFilter = Annotated[str | None, Query(description="Only this operation.")]
NodeFilter = Annotated[str | None, Query(description="Only operations of this node, by id or name.")]
BatchFilter = Annotated[str | None, Query(description="Only operations of this batch.")]

_STREAM: dict[str, Any] = {
    "description": (
        "`operation` events carry an id and an OperationEvent; `progress` events carry a ProgressTick and no id:"
        " they are gauges, safe to lose. A `reset` event carries a StreamReset: the database was restored to an older"
        " copy; reload what you show, the stream continues from there. A `model` event carries a ModelNotice and no id:"
        " a deployment or its replicas changed; streams about one operation, node or batch do not get it."
    ),
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
            "x-operation": {"$ref": "#/components/schemas/OperationEvent"},
            "x-progress": {"$ref": "#/components/schemas/ProgressTick"},
            "x-reset": {"$ref": "#/components/schemas/StreamReset"},
            "x-model": {"$ref": "#/components/schemas/ModelNotice"},
        }
    },
}


class EventStreamResponse(StreamingResponse):
    """A stream that disconnects a reader that takes nothing for a while; it gets what it missed when it reconnects."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes], *, stuck_after_s: float) -> None:
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._frames = frames
        self._stuck_after_s = stuck_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: Message) -> None:
            async with asyncio.timeout(self._stuck_after_s):
                await send(message)

        async with aclosing(self._frames):  # in every case the hub drops this reader at once
            try:
                await super().__call__(scope, receive, bounded)
            except TimeoutError:
                log.info("events.reader_stuck", client=scope.get("client"))


@router.get("", status_code=200, response_class=EventStreamResponse, responses={200: _STREAM, **responses(400)})
async def follow_events(
    deps: Deps,
    token: Bearer,
    session: Session,
    *,
    last_event_id: LastEventId = None,
    in_url: LastEventIdInUrl = None,
    op_id: OpFilter = None,
    node_id: NodeFilter = None,
    batch_id: BatchFilter = None,
) -> EventStreamResponse:
    """Follow events, from a number on or from now.

    A comment is sent every 15 s. The token or session is checked each time: the stream ends when it is no longer valid.
    """
    interest = StreamFilter(op_id, await _node_id(deps, node_id), batch_id)
    known = last_event_id if last_event_id is not None else in_url
    cursor = await deps.events.start_cursor(interest, known)
    is_reset = known is not None and known > cursor
    frames = deps.events.follow(interest, cursor, _still_admitted(deps.access, token, session), is_reset=is_reset)
    return EventStreamResponse(frames, stuck_after_s=deps.events.stuck_after_s)


async def _node_id(deps: Dependencies, node: str | None) -> str | None:
    """Return the id for a name; a removed node keeps its history under the id."""
    known = await deps.nodes.find(node) if node is not None else None
    return known.id if known else node


def _still_admitted(access: Access, token: str, session: str | None) -> IsAdmitted:
    async def is_admitted() -> bool:
        try:
            return await identify(access, token, session) is not None
        except ServiceUnavailable:  # checked again with the next keep-alive; until then there are no events to send
            return True

    return is_admitted
