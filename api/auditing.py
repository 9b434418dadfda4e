"""The audit trail, for every route alike: what a caller changed is written right after it, before the answer leaves.

A route need not do anything for it; one that knows better what it changed says so with `tell`.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import structlog
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.parts import Parts, parts_of
from domain.access import Caller
from domain.change import Change
from domain.errors import NodesmithError

log = structlog.stdlib.get_logger(__name__)

LONGEST_REASON = 500
_BIGGEST_BODY = 64 * 1024
_SECRET = re.compile(r"token|secret|password|credential|key", re.IGNORECASE)
_VERBS = {"POST": "create", "PUT": "set", "PATCH": "merge", "DELETE": "remove"}
_VOLATILE = {"last_heartbeat", "updated_at", "unreachable_since", "open_operations", "boot_id", "status"}
"""what moves by itself between two looks at a node"""

Facts = dict[str, Any]


@dataclass
class Pending:
    """The change that a request is about to make."""

    change: Change
    look: Callable[[], Awaitable[Facts | None]]
    seen_before: Facts | None
    is_told: bool = False


async def begin(request: Request, who: Caller) -> None:
    """The caller is admitted and about to change something: look at it as it was."""
    if hasattr(request.state, "pending"):
        return
    path = request.scope["route"].path
    look = _nothing if "/backends/" in path else _look_at(parts_of(request), request.path_params)
    before = await look()
    action = action_of(request.method, path)
    change = Change(who.name, action, *_target(request.path_params, before))
    request.state.pending = Pending(change, look, before)


def action_of(method: str, path: str) -> str:
    """The path in words: nodes.approve, nodes.backends.install, nodes.labels.set, tokens.create, tokens.remove."""
    words = [part for part in path.split("/") if part and not part.startswith("{") and part != "api"]
    is_collection = len(words) == 1 and words[0].endswith("s")
    if method != "POST" or is_collection:
        words.append(_VERBS.get(method, method.lower()))
    return ".".join(words)


def tell(request: Request, **facts: Any) -> None:
    """What the route knows better: target, target_id, before, after, reason."""
    pending: Pending = request.state.pending
    pending.change = replace(pending.change, **facts)
    pending.is_told = pending.is_told or "after" in facts or "before" in facts


class Audited:
    """Writes down what was changed once it is known that it was, and before the caller is told."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        body = bytearray()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < HTTPStatus.BAD_REQUEST:
                await _write(scope, bytes(body))
            await send(message)

        await self._app(scope, _tapped(scope, receive, body), sending)


def _tapped(scope: Scope, receive: Receive, body: bytearray) -> Receive:
    """Keep a small JSON body as it goes by: it says what was asked, and why."""
    headers = Headers(scope=scope)
    length = headers.get("content-length", "")
    if "json" not in headers.get("content-type", "") or not length.isdigit() or int(length) > _BIGGEST_BODY:
        return receive

    async def receiving() -> Message:
        message = await receive()
        body.extend(message.get("body", b""))
        return message

    return receiving


async def _write(scope: Scope, body: bytes) -> None:
    pending: Pending | None = scope.get("state", {}).get("pending")
    if pending is None:
        return
    asked = _asked(body)
    change = replace(pending.change, reason=_reason(pending.change, scope, asked))
    try:
        if not pending.is_told:
            change = await _compared(pending, change, asked)
        await scope["app"].state.parts.audit.record(change)
    except NodesmithError:
        # it has happened: the log keeps what the table could not
        log.exception("audit.not_written", change=repr(change))


async def _compared(pending: Pending, change: Change, asked: Facts) -> Change:
    """From what to what; where nothing of the target differs, what was asked for."""
    after = await pending.look()
    before = pending.seen_before
    if before is not None and after is not None:
        keys = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        before, after = _only(before, keys), _only(after, keys)
    elif before is None and after is None:
        after = _without_secrets(asked) or None
    return replace(change, before=before, after=after or _without_secrets(asked) or None)


def _look_at(parts: Parts, path: Mapping[str, str]) -> Callable[[], Awaitable[Facts | None]]:
    """How to see what a path names: a node, an operation, or nothing that we know how to look at."""

    async def node() -> Facts | None:
        found = await parts.nodes.find(path["node"])
        return found.model_dump(mode="json", exclude=_VOLATILE) if found else None

    async def operation() -> Facts | None:
        found = await parts.operations.find(path["op_id"])
        return found.model_dump(mode="json", include={"op_id", "state", "reason", "dismissed_at"}) if found else None

    return node if "node" in path else operation if "op_id" in path else _nothing


async def _nothing() -> Facts | None:
    """An order for a node's backends changes nothing of the node's own row: the route tells what it became."""
    return None


def _target(path: Mapping[str, str], seen: Facts | None) -> tuple[str, str]:
    """Name and id."""
    if seen and "name" in seen:
        return str(seen["name"]), str(seen["id"])
    return "/".join(path.values()), ""


def _only(facts: Facts, keys: set[str]) -> Facts | None:
    return {key: facts[key] for key in sorted(keys) if key in facts} or None


def _reason(change: Change, scope: Scope, asked: Facts) -> str:
    in_url = QueryParams(scope["query_string"]).get("reason", "")
    in_body = asked.get("reason", "")
    reason = change.reason or in_url or (in_body if isinstance(in_body, str) else "")
    return reason[:LONGEST_REASON]


def _asked(body: bytes) -> Facts:
    try:
        asked = json.loads(body)
    except ValueError:
        return {}
    return asked if isinstance(asked, dict) else {}


def _without_secrets(asked: Facts) -> Facts:
    return {
        key: "***" if _SECRET.search(key) else _without_secrets(value) if isinstance(value, dict) else value
        for key, value in asked.items()
        if key != "reason"
    }
