"""The event stream (SSE): every change of state with a number, progress ticks without."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Header, Query
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from api.auth import Bearer, Session, identify, viewer
from api.parts import Parts, PartsOf
from api.problems import responses
from api.stream import Interest, IsAdmitted
from contracts.operation_http import OperationEvent, ProgressTick
from domain.errors import ServiceUnavailable
from services.access import Access

log = structlog.stdlib.get_logger(__name__)

router = APIRouter(prefix="/api/events", tags=["events"], dependencies=[Depends(viewer)])

_BIGGEST = 2**63 - 1

LastEventIdInUrl = Annotated[
    int | None,
    Query(ge=0, le=_BIGGEST, alias="last_event_id", description="The same, for who cannot send the header."),
]
LastEventId = Annotated[int | None, Header(ge=0, le=_BIGGEST, description="Continue after this number.")]
OpFilter = Annotated[str | None, Query(description="Only this operation.")]
NodeFilter = Annotated[str | None, Query(description="Only operations of this node, by id or name.")]
BatchFilter = Annotated[str | None, Query(description="Only operations of this batch.")]

_STREAM: dict[str, Any] = {
    "description": (
        "`operation` events carry an id and an OperationEvent; `progress` events carry a ProgressTick and no id:"
        " they are gauges, safe to lose."
    ),
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
            "x-operation": OperationEvent.model_json_schema(),
            "x-progress": ProgressTick.model_json_schema(),
        }
    },
}


class EventStreamResponse(StreamingResponse):
    """A stream whose reader is let go when it takes nothing for a while; it finds what it missed on its return."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes], *, stuck_after_s: float) -> None:
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._frames = frames
        self._stuck_after_s = stuck_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: Message) -> None:
            async with asyncio.timeout(self._stuck_after_s):
                await send(message)

        async with aclosing(self._frames):  # however it ends, the hub forgets this reader at once
            try:
                await super().__call__(scope, receive, bounded)
            except TimeoutError:
                log.info("events.reader_stuck", client=scope.get("client"))


@router.get("", status_code=200, response_class=EventStreamResponse, responses={200: _STREAM, **responses(400)})
async def follow_events(
    parts: PartsOf,
    token: Bearer,
    session: Session,
    *,
    last_event_id: LastEventId = None,
    in_url: LastEventIdInUrl = None,
    op_id: OpFilter = None,
    node_id: NodeFilter = None,
    batch_id: BatchFilter = None,
) -> EventStreamResponse:
    """Follow what happens, from a number on or from now.

    A comment comes every 15 s. The token or session is checked with it: the stream ends once it is not good any more.
    """
    interest = Interest(op_id, await _node_id(parts, node_id), batch_id)
    cursor = await parts.events.start_of(interest, last_event_id if last_event_id is not None else in_url)
    frames = parts.events.follow(interest, cursor, _still_admitted(parts.access, token, session))
    return EventStreamResponse(frames, stuck_after_s=parts.events.stuck_after_s)


async def _node_id(parts: Parts, node: str | None) -> str | None:
    """The id behind a name; a node that is gone keeps its history under the id."""
    known = await parts.nodes.find(node) if node is not None else None
    return known.id if known else node


def _still_admitted(access: Access, token: str, session: str | None) -> IsAdmitted:
    async def is_admitted() -> bool:
        try:
            return await identify(access, token, session) is not None
        except ServiceUnavailable:  # asked again with the next keep-alive; meanwhile there are no events to send
            return True

    return is_admitted
