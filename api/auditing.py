"""The audit trail, for every route alike: a change is written down before it is made, and what it became before the
answer leaves. Whoever dies between leaves a row that says `unknown`.

A route need not do anything for it; one that knows better what it changed says so with `tell`, once it has.
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
from domain.errors import NodesmithError, ServiceUnavailable
from store.audit import AuditTrail

log = structlog.stdlib.get_logger(__name__)

LONGEST_REASON = 500
_BIGGEST_BODY = 64 * 1024
_SECRET = re.compile(r"token|secret|password|credential|key|^ca$|^proxy$", re.IGNORECASE)
"""the last two are how a source is reached: that has one home, and it is sealed"""
_IN_ADDRESS = re.compile(r"://[^/@\s]+@")
_VERBS = {"POST": "create", "PUT": "set", "PATCH": "merge", "DELETE": "remove"}
_VOLATILE = {"last_heartbeat", "updated_at", "unreachable_since", "open_operations", "boot_id", "boot_at", "status"}
"""what moves by itself between two looks at a node"""

_FIRST_IN_TEMPORAL = re.compile(
    r"/api/nodes/\{node\}/backends/(install|upgrade|rollback|remove|delete)"
    r"|/api/operations/\{op_id\}/(cancel|pause|retry)"
    r"|/api/batches(/\{batch_id\}/\w+)?"
    r"|(/api)?/backends/(?!upgrades).+"
)
"""Routes whose first effect is one call to Temporal: one that was never sent has changed nothing."""

Facts = dict[str, Any]


@dataclass
class Pending:
    """The change that a request is about to make."""

    entry: int
    """its row"""
    change: Change
    look: Callable[[], Awaitable[Facts | None]]
    is_first_in_temporal: bool = False
    is_told: bool = False
    is_only_a_look: bool = False

    def is_unchanged(self, error: NodesmithError | None) -> bool:
        """Whether the server that makes the first effect was away before anything was sent to it."""
        is_away = type(error) is ServiceUnavailable and error.facts.get("server") == "temporal"
        return is_away and self.is_first_in_temporal


async def begin(request: Request, who: Caller) -> None:
    """The caller is admitted and about to change something: look at it as it was, and write down what was asked."""
    if hasattr(request.state, "pending"):
        return
    parts, path, asked = parts_of(request), request.scope["route"].path, _asked(request.scope)
    look = _nothing if "/backends/" in path else _look_at(parts, request.path_params)
    before = await look()
    change = Change(
        who.name,
        action_of(request.method, path),
        *_target(request.path_params, before),
        before=before,
        after=_without_secrets(asked) or None,
        reason=_reason(request.scope, asked),
    )
    is_first_in_temporal = _FIRST_IN_TEMPORAL.fullmatch(path) is not None
    request.state.pending = Pending(await parts.audit.begin(change), change, look, is_first_in_temporal)


def action_of(method: str, path: str) -> str:
    """The path in words: nodes.approve, nodes.backends.install, nodes.labels.set, tokens.create, tokens.remove."""
    words = [part for part in path.split("/") if part and not part.startswith("{") and part != "api"]
    is_collection = len(words) == 1 and words[0].endswith("s")
    if method != "POST" or is_collection:
        words.append(_VERBS.get(method, method.lower()))
    return ".".join(words)


def tell(request: Request, **facts: Any) -> None:
    """What the route knows better, once it has made the change: target, target_id, before, after."""
    pending: Pending = request.state.pending
    pending.change = replace(pending.change, **{"before": None, "after": None, **facts})
    pending.is_told = True


def ordered(request: Request, **after: Any) -> None:
    """An order that is carried out later: it met what there was, and there is nothing else to see yet."""
    pending: Pending = request.state.pending
    pending.change = replace(pending.change, after={**(pending.change.after or {}), **after})
    pending.is_told = True


def only_looked(request: Request) -> None:
    """A plan or a preview: asked like a change, and none."""
    request.state.pending.is_only_a_look = True


class Audited:
    """Writes down how a change went, before the caller is told. What was refused leaves no row."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["body"] = bytearray()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and (pending := state.get("pending")):
                await _settle(scope["app"].state.parts.audit, pending, message["status"], state.get("error"))
            await send(message)

        await self._app(scope, _tapped(scope, receive, state["body"]), sending)


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


async def _settle(trail: AuditTrail, pending: Pending, status: int, error: NodesmithError | None) -> None:
    """After a 5xx nobody knows how much of it was made, unless the route told, or nothing was: the row stays."""
    is_made = status < HTTPStatus.BAD_REQUEST and not pending.is_only_a_look
    try:
        if is_made or pending.is_told:
            change = pending.change if pending.is_told else await _compared(pending)
            await trail.complete(pending.entry, change)
        elif status < HTTPStatus.INTERNAL_SERVER_ERROR or pending.is_unchanged(error):
            await trail.forget(pending.entry)
    except NodesmithError:
        # it has happened: the log keeps what the table could not
        log.exception("audit.not_completed", change=repr(pending.change))


async def _compared(pending: Pending) -> Change:
    """From what to what; where nothing of the target differs, what was asked for."""
    after, asked = await pending.look(), pending.change.after
    before = pending.change.before
    if before is not None and after is not None:
        keys = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        before, after = _only(before, keys), _only(after, keys)
    return replace(pending.change, before=before, after=after or asked)


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


def _only(facts: Mapping[str, object], keys: set[str]) -> Facts | None:
    return {key: facts[key] for key in sorted(keys) if key in facts} or None


def _reason(scope: Scope, asked: Facts) -> str:
    in_url = QueryParams(scope["query_string"]).get("reason", "")
    in_body = asked.get("reason", "")
    reason = in_url or (in_body if isinstance(in_body, str) else "")
    return reason[:LONGEST_REASON]


def _asked(scope: Scope) -> Facts:
    """The body, as far as it was read by now: FastAPI reads what a route declares before anything else."""
    try:
        asked = json.loads(scope["state"]["body"])
    except ValueError:
        return {}
    return asked if isinstance(asked, dict) else {}


def _without_secrets(asked: Facts) -> Facts:
    return {
        key: "***" if _SECRET.search(key) else _without_passwords(value)
        for key, value in asked.items()
        if key != "reason"
    }


def _without_passwords(value: Any) -> Any:
    """An address may have one in it."""
    if isinstance(value, dict):
        return _without_secrets(value)
    if isinstance(value, list):
        return [_without_passwords(each) for each in value]
    return _IN_ADDRESS.sub("://***@", value) if isinstance(value, str) else value
