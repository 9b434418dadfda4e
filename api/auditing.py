"""The audit trail, for every route: the change is recorded before it is made, its result before the response is sent.
A process that dies in between leaves a row with the result `unknown`.

Routes need no code for it. A route that knows more about its change adds that with `record`, after the change.
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

from nodesmith.api.dependencies import Dependencies, dependencies_of
from nodesmith.api.views.nodes import node_view
from nodesmith.api.views.operations import operation_view
from nodesmith.domain.access import Caller
from nodesmith.domain.audit_change import AuditChange
from nodesmith.domain.errors import NodesmithError, ServiceUnavailable
from nodesmith.store.access.audit import AuditTrail

log = structlog.stdlib.get_logger(__name__)

LONGEST_REASON = 500
_LARGEST_COPY = 1024 * 1024
_LONGEST_TEXT, _MOST_VALUES, _DEEPEST = 4096, 1000, 20
"""of a request, as it is kept; the body itself has the limit of all bodies"""
_SECRET = re.compile(r"token|secret|password|credential|key|^ca$|^proxy$", re.IGNORECASE)
"""the last two say how a source is reached; those settings are stored sealed, in one place only"""
_IN_ADDRESS = re.compile(r"://[^/@\s]+@")
_PREFIXES = ("api", "v1")
_VERBS = {"POST": "create", "PUT": "set", "PATCH": "merge", "DELETE": "remove"}
_VOLATILE = {"last_heartbeat", "updated_at", "unreachable_since", "open_operations", "boot_id", "boot_at", "status"}
"""fields of a node that change without a request"""

_FIRST_IN_TEMPORAL = re.compile(
    r"/api/nodes/\{node\}/backends/(install|upgrade|delete)"
    r"|/api/v1/operations"
    r"|(/api|/api/v1)/operations/\{op_id\}/(cancel|pause|retry)"
    r"|/api/v1/batches(/\{batch_id\}/\w+)?"
    r"|(/api)?/backends/(?!upgrades).+"
)
"""Routes whose first effect is one call to Temporal: if that call was never sent, nothing has changed."""

Facts = dict[str, Any]


@dataclass
class Pending:
    """A change that a request is about to make."""

    entry: int
    """its row"""
    change: AuditChange
    read_target: Callable[[], Awaitable[Facts | None]]
    is_first_in_temporal: bool = False
    is_recorded: bool = False
    is_preview: bool = False

    def is_unchanged(self, error: NodesmithError | None) -> bool:
        """Return whether the server of the first effect was unreachable before anything was sent to it."""
        is_away = type(error) is ServiceUnavailable and error.facts.get("server") == "temporal"
        return is_away and self.is_first_in_temporal


async def begin(request: Request, who: Caller) -> None:
    """Read the target as it is now and record the request, once the caller is authorised."""
    if hasattr(request.state, "pending"):
        return
    deps, path, body = dependencies_of(request), request.scope["route"].path, _json_body(request.scope)
    read_target = _nothing if "/backends/" in path else _target_reader(deps, request.path_params)
    before = await read_target()
    change = AuditChange(
        who.name,
        action_of(request.method, path),
        *_target(request.path_params, before),
        before=before,
        after=_without_secrets(body) or None,
        reason=_reason(request.scope, body),
    )
    is_first_in_temporal = _FIRST_IN_TEMPORAL.fullmatch(path) is not None
    request.state.pending = Pending(await deps.audit.begin(change), change, read_target, is_first_in_temporal)


def action_of(method: str, path: str) -> str:
    """Derive the action from the path: nodes.approve, nodes.backends.install, nodes.labels.set, tokens.create, ..."""
    words = [part for part in path.split("/") if part and not part.startswith("{") and part not in _PREFIXES]
    is_collection = len(words) == 1 and words[0].endswith("s")
    if method != "POST" or is_collection:
        words.append(_VERBS.get(method, method.lower()))
    return ".".join(words)


def record(request: Request, **facts: Any) -> None:
    """Set what the route knows after its change: target, target_id, before, after."""
    pending: Pending = request.state.pending
    pending.change = replace(pending.change, **{"before": None, "after": None, **facts})
    pending.is_recorded = True


def record_order(request: Request, **after: Any) -> None:
    """Record an order that is carried out later: there is no state to compare yet."""
    pending: Pending = request.state.pending
    pending.change = replace(pending.change, after={**(pending.change.after or {}), **after})
    pending.is_recorded = True


def record_nothing(request: Request) -> None:
    """Drop the audit row of a plan or preview: the request has the form of a change and makes none."""
    request.state.pending.is_preview = True


class Audited:
    """Middleware that records the result of a change before the response is sent. Refused requests leave no row."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["body"] = bytearray()

        async def recording_send(message: Message) -> None:
            if message["type"] == "http.response.start" and (pending := state.get("pending")):
                await _write_result(scope["app"].state.deps.audit, pending, message["status"], state.get("error"))
            await send(message)

        await self._app(scope, _copy_body(scope, receive, state["body"]), recording_send)


def _copy_body(scope: Scope, receive: Receive, body: bytearray) -> Receive:
    """Copy a JSON body while the route reads it, in whatever pieces: it holds the request and its reason."""
    if "json" not in Headers(scope=scope).get("content-type", ""):
        return receive

    async def copying_receive() -> Message:
        message = await receive()
        if len(body) <= _LARGEST_COPY:  # an upload may say that it is JSON
            body.extend(message.get("body", b""))
        return message

    return copying_receive


async def _write_result(trail: AuditTrail, pending: Pending, status: int, error: NodesmithError | None) -> None:
    """Write the result. After a 5xx the row stays `unknown`, unless the route recorded a change or nothing was sent."""
    is_made = status < HTTPStatus.BAD_REQUEST and not pending.is_preview
    try:
        if is_made or pending.is_recorded:
            change = pending.change if pending.is_recorded else await _compare(pending)
            await trail.complete(pending.entry, change)
        elif status < HTTPStatus.INTERNAL_SERVER_ERROR or pending.is_unchanged(error):
            await trail.forget(pending.entry)
    except NodesmithError:
        # the change was made: the log keeps what the table could not
        log.exception("audit.not_completed", change=repr(pending.change))


async def _compare(pending: Pending) -> AuditChange:
    """Return before and after; the request itself where the target shows no difference."""
    after, body = await pending.read_target(), pending.change.after
    before = pending.change.before
    if before is not None and after is not None:
        keys = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        before, after = _select(before, keys), _select(after, keys)
    return replace(pending.change, before=before, after=after or body)


def _target_reader(deps: Dependencies, path: Mapping[str, str]) -> Callable[[], Awaitable[Facts | None]]:
    """Return a function that reads the target of a path: a node, an operation, or nothing that can be read."""

    async def node() -> Facts | None:
        found = await deps.nodes.find(path["node"])
        return node_view(found).model_dump(mode="json", exclude=_VOLATILE) if found else None

    async def operation() -> Facts | None:
        found = await deps.operations.find(path["op_id"])
        if found is None:
            return None
        return operation_view(found).model_dump(mode="json", include={"op_id", "state", "reason", "dismissed_at"})

    return node if "node" in path else operation if "op_id" in path else _nothing


async def _nothing() -> Facts | None:
    """For orders to a node's backends: they change nothing in the node's row; the route records the operation."""
    return None


def _target(path: Mapping[str, str], seen: Facts | None) -> tuple[str, str]:
    """Return name and id of the target."""
    if seen and "name" in seen:
        return str(seen["name"]), str(seen["id"])
    return "/".join(path.values()), ""


def _select(facts: Mapping[str, object], keys: set[str]) -> Facts | None:
    return {key: facts[key] for key in sorted(keys) if key in facts} or None


def _reason(scope: Scope, body: Facts) -> str:
    in_url = QueryParams(scope["query_string"]).get("reason", "")
    in_body = body.get("reason", "")
    reason = in_url or (in_body if isinstance(in_body, str) else "")
    return reason[:LONGEST_REASON]


def _json_body(scope: Scope) -> Facts:
    """Return the body as far as it was read: FastAPI reads what a route declares before anything else."""
    try:
        body = json.loads(scope["state"]["body"])
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _without_secrets(body: Facts, depth: int = 0) -> Facts:
    return {
        key: "***" if _SECRET.search(key) else _without_passwords(value, depth + 1)
        for key, value in body.items()
        if key != "reason"
    }


def _without_passwords(value: Any, depth: int) -> Any:
    """Remove passwords from addresses, and cut what is too long or too deep to be kept."""
    if isinstance(value, dict | list) and depth > _DEEPEST:
        return "..."
    if isinstance(value, dict):
        return _without_secrets(value, depth)
    if isinstance(value, list):
        return [_without_passwords(each, depth + 1) for each in value[:_MOST_VALUES]]
    return _IN_ADDRESS.sub("://***@", value[:_LONGEST_TEXT]) if isinstance(value, str) else value
