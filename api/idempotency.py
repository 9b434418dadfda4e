"""`Idempotency-Key`, for every POST: the first request is carried out, a repetition gets the same response.

Routes need no code for it. A route that starts a job takes the key itself (`IdempotencyKey`), because the job id is
reserved with it. A route whose response has a secret declares `shown_once`: secrets are not stored for a repetition.
A node's own routes (`/api/node/...`) take no key: each of them can be repeated safely.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import structlog
from fastapi.dependencies.models import Dependant
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nodesmith.api.dependencies import KEY_HEADER, LONGEST_KEY, Dependencies, dependencies_of
from nodesmith.domain.access import Caller
from nodesmith.domain.errors import InvalidRequest, NodesmithError, ShownOnce
from nodesmith.domain.idempotency import KeyClaim, StoredAnswer, request_digest
from nodesmith.services.operations.idempotency import KeyedRequest

log = structlog.stdlib.get_logger(__name__)

REPEATED = {"Idempotent-Replayed": "true"}
"""header of a repeated response"""
_SECRET = re.compile(r"token|secret|password|seed|jwt", re.IGNORECASE)


async def shown_once() -> None:
    """Declared by a route whose response has a secret: a repetition with the same key is a 409 and changes nothing."""


class RepeatedRequest(Exception):
    """The request was answered before."""

    def __init__(self, answer: StoredAnswer) -> None:
        self.answer = answer


@dataclass(frozen=True)
class PendingAnswer:
    """A request that holds its key until its response is stored."""

    keyed_request: KeyedRequest
    claim: KeyClaim
    is_shown_once: bool

    def _answer(self, messages: Sequence[Message]) -> StoredAnswer:
        status = messages[0]["status"]
        if self.is_shown_once:
            return StoredAnswer(status)
        body = b"".join(each.get("body", b"") for each in messages[1:])
        return StoredAnswer(status, _storable(body), Headers(raw=messages[0]["headers"]).get("location"))

    async def settle(self, messages: Sequence[Message]) -> None:
        """Store the response before it is sent. A refusal or failure is not stored, so it may be sent again."""
        status = messages[0]["status"]
        try:
            if status >= HTTPStatus.BAD_REQUEST:
                await self.keyed_request.withdraw(self.claim)
            else:
                await self.keyed_request.answered(self.claim, self._answer(messages))
        except NodesmithError:
            log.exception("idempotency.answer_not_kept")  # the change was made: the caller gets the response anyway


async def begin(request: Request, who: Caller) -> None:
    """Claim the key for an authorised caller, or respond with the stored response."""
    key, dependant = request.headers.get(KEY_HEADER), request.scope["route"].dependant
    if request.method != "POST" or not key or hasattr(request.state, "held") or takes_key(dependant):
        return
    if len(key) > LONGEST_KEY:
        raise InvalidRequest(f"{KEY_HEADER}: at most {LONGEST_KEY} characters.", field=KEY_HEADER)
    deps, is_shown_once = dependencies_of(request), _declares_shown_once(dependant)
    keyed_request = KeyedRequest(deps.keys, who.name, key, await _digest(request))
    claim = await keyed_request.begin(patience_s=deps.key_patience_s)
    if is_shown_once and not claim.is_new:
        raise ShownOnce
    if claim.answer is not None:
        raise RepeatedRequest(claim.answer)
    request.state.held = PendingAnswer(keyed_request, claim, is_shown_once)


def takes_key(dependant: Dependant) -> bool:
    """Return whether the route passes the key to the code that starts its job."""
    return any(each.alias == KEY_HEADER for each in dependant.header_params) or any(
        takes_key(below) for below in dependant.dependencies
    )


async def repeat_answer(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RepeatedRequest)  # noqa: S101 - registered for this class
    location = {"Location": error.answer.location} if error.answer.location else {}
    return JSONResponse(error.answer.body, error.answer.status, {**REPEATED, **location})


class IdempotentPosts:
    """Middleware that delays a response until it is stored under its key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        messages: list[Message] = []

        async def storing_send(message: Message) -> None:
            held: PendingAnswer | None = state.get("held")
            if held is None:
                await send(message)
                return
            messages.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                await held.settle(messages)
                for each in messages:
                    await send(each)

        try:
            await self._app(scope, receive, storing_send)
        except Exception:  # our own defect: the same request may be sent again
            await _forget(state.get("held"))
            raise


async def _forget(held: PendingAnswer | None) -> None:
    try:
        if held is not None:
            await held.keyed_request.withdraw(held.claim)
    except NodesmithError:
        log.exception("idempotency.key_not_withdrawn")


async def _digest(request: Request) -> str:
    """Hash the route, the resolved target, the path, the query and the body."""
    deps, path = dependencies_of(request), dict(request.path_params)
    if "node" in path:
        path["node"] = await _node_id(deps, path["node"])
    content = {"query": sorted(request.query_params.multi_items()), "body": _read(await request.body())}
    return request_digest(request.scope["route"].path, json.dumps(path, sort_keys=True), content)


async def _node_id(deps: Dependencies, node: str) -> str:
    found = await deps.nodes.find(node)
    return found.id if found else node


def _read(body: bytes) -> Any:
    """Parse JSON, so that white space and the order of fields do not matter."""
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        return body.hex()


def _storable(body: bytes) -> Any:
    return _without_secrets(_read(body))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(each) for name, each in value.items() if not _SECRET.search(name)}
    return [_without_secrets(each) for each in value] if isinstance(value, list) else value


def _declares_shown_once(dependant: Dependant) -> bool:
    return any(below.call is shown_once or _declares_shown_once(below) for below in dependant.dependencies)
