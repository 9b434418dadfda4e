"""The Temporal Web UI behind our sign-in. It has its own port: on the API's origin its scripts could call the API.

Viewers read; operators also act on runs (cancel, terminate, reset, ...); everything else is for admins. Each change has
a row in the audit trail. The Web UI's server never receives our cookie or a token; pages of other origins are refused.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx2
import structlog
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nodesmith.api import problems
from nodesmith.api.auditing import LONGEST_REASON
from nodesmith.api.auth import identify, refuse_foreign_pages, session_cookie, still_admitted
from nodesmith.api.dependencies import Dependencies
from nodesmith.api.login_throttle import LoginThrottle
from nodesmith.api.middleware import BIGGEST_BODY
from nodesmith.api.pages import STYLES, sign_in_page, styles
from nodesmith.domain.access import Caller, Role
from nodesmith.domain.audit_change import AuditChange
from nodesmith.domain.errors import InvalidRequest, NotAllowed, NotSignedIn, ServiceUnavailable
from nodesmith.services.access.callers import require

log = structlog.stdlib.get_logger(__name__)

RETURN_COOKIE = "nodesmith_return"
"""cookie with the page that a browser wanted before it had to sign in; the API reads it, as cookies ignore ports"""
RETURN_LIFETIME_S = 900
_LONGEST_RETURN = 2000
_OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")
_READS = ("GET", "HEAD")
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_ON_A_RUN = re.compile(
    r"/api/v1/namespaces/[^/]+/workflows/(?P<run>[^/]+)"
    r"/(?P<verb>cancel|terminate|reset|pause|unpause|signal|update|query)(/[^/]+)?"
)
_BATCH = re.compile(r"/api/v1/namespaces/[^/]+/batch-operations/(?P<run>[^/]+)(/(?P<verb>stop))?")
"""actions allowed to operators"""
_BATCH_FIELDS = {
    *("namespace", "jobid", "reason", "identity", "visibilityquery", "executions", "maxoperationspersecond"),
    *("terminationoperation", "cancellationoperation", "signaloperation", "resetoperation"),
}
"""fields of a batch that operators may send, in lower case without underscores; deletions are for admins"""
_PASSED_ON = (
    *("accept", "accept-encoding", "accept-language", "caller-type", "content-type"),
    *("if-modified-since", "if-none-match", "range", "user-agent", "x-csrf-token"),
)
_THEIR_COOKIE = "_csrf"
_PASSED_BACK = (
    *("accept-ranges", "cache-control", "content-encoding", "content-length", "content-range", "content-type"),
    *("etag", "last-modified", "location", "vary", "content-security-policy"),
)
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; object-src 'none';"
    " img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; connect-src 'self'; frame-src 'self';"
    " frame-ancestors 'self'; base-uri 'self'; form-action 'self'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "no-referrer",
}
_SETTINGS = "/api/v1/settings"
_VERSION = "/_app/version.json"
_LASTING = "/_app/immutable/"
"""files whose names change with their content; the server sends no cache header, and a page has 230 of them"""
_KEPT = {"cache-control": "private, max-age=31536000, immutable", "vary": "Accept-Encoding"}


def create_web_ui(deps: Dependencies, server: httpx2.AsyncClient, hosts: Iterable[str]) -> Starlette:
    """The application on the Web UI's port; `hosts` are the host names that it accepts."""
    web_ui = WebUi(deps, server, frozenset(hosts))
    app = Starlette(
        routes=[Route("/{path:path}", web_ui.answer, methods=[*_READS, *_WRITES])],
        middleware=[Middleware(LoginThrottle, failures=deps.failures, known=deps.credentials)],
    )
    problems.install(app)
    return app


def allowed_hosts(url: str, port: int, listen_host: str) -> set[str]:
    """Loopback, the address for other machines, and the host in links."""
    own = ("127.0.0.1", "localhost", "[::1]", f"[{listen_host}]" if ":" in listen_host else listen_host)
    return {f"{name}:{port}" for name in own if name} | {urlsplit(url).netloc}


def address_for(request: Request, deps: Dependencies) -> str:
    """The Web UI's URL under the host name that this browser uses, because its session is valid only there."""
    ui = urlsplit(deps.temporal_ui_url)
    if not deps.serves_temporal_ui or not request.url.hostname:
        return deps.temporal_ui_url
    host = f"[{request.url.hostname}]" if ":" in request.url.hostname else request.url.hostname
    return f"{request.url.scheme}://{host}:{ui.port}" if ui.port else f"{request.url.scheme}://{host}"


def url_after_sign_in(request: Request, deps: Dependencies) -> str:
    """Where to redirect a browser after sign-in: the Web UI page that it came from, else the overview."""
    path = unquote(request.cookies.get(RETURN_COOKIE, ""))
    if not deps.serves_temporal_ui or not _OWN_PATH.fullmatch(path):
        return "/"
    return f"{address_for(request, deps)}{path}"


@dataclass(frozen=True)
class WebUi:
    """Authenticates the request, then forwards it to the Web UI's server."""

    deps: Dependencies
    server: httpx2.AsyncClient
    hosts: frozenset[str]

    async def answer(self, request: Request) -> Response:
        self._refuse_foreign(request)
        if request.method in _READS and request.url.path == STYLES:
            return _styles()
        token = _bearer(request)
        who = await identify(self.deps.access, token, request.cookies.get(session_cookie(request)))
        if who is None:
            return _to_sign_in(request)
        if request.method in _READS:
            is_read_only = request.url.path == _SETTINGS and not who.role.includes(Role.OPERATOR)
            return await (self._read_only_settings() if is_read_only else self._forward(request, b""))
        if not token:
            refuse_foreign_pages(request)
        return await self._change(request, who)

    def _refuse_foreign(self, request: Request) -> None:
        """Refuse a foreign host name (DNS rebinding) and pages of another origin."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self.hosts:
            raise NotAllowed("The Temporal Web UI is not served under this host name.")
        if origin is not None and urlsplit(origin).netloc != host:
            raise NotAllowed("The request came from a page of another origin.")

    async def _change(self, request: Request, who: Caller) -> Response:
        path = _path(request)
        action = _ON_A_RUN.fullmatch(path) or _BATCH.fullmatch(path)
        require(who, Role.OPERATOR if action and request.method == "POST" else Role.ADMIN)
        body = await _body(request)
        await self._check_again(request)
        if _BATCH.fullmatch(path) and not _is_for_operators(body):
            require(who, Role.ADMIN)
        if action and action["verb"] == "query":
            return await self._forward(request, body)
        target = unquote(action["run"]) if action else path
        verb = (action["verb"] or "batch") if action else request.method.lower()
        change = AuditChange(who.name, f"temporal.{verb}", target, after={"path": path}, reason=_reason(body))
        entry = await self.deps.audit.begin(change)
        answer = await self._forward(request, body)
        if answer.status_code < HTTPStatus.BAD_REQUEST:
            await self.deps.audit.complete(entry, change)
        elif answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            await self.deps.audit.forget(entry)
        return answer

    async def _check_again(self, request: Request) -> None:
        """Check the credential again: a body may take minutes, and the token may have been revoked meanwhile."""
        await still_admitted(self.deps, _bearer(request), request.cookies.get(session_cookie(request)))

    async def _read_only_settings(self) -> Response:
        """The settings that its pages request first; these hide the buttons that a viewer may not use."""
        answer = await self._send(self.server.build_request("GET", _SETTINGS))
        settings = json.loads(await answer.aread())
        return JSONResponse(
            {**settings, "DisableWriteActions": True}, headers={**_HEADERS, "Cache-Control": "no-store"}
        )

    async def _forward(self, request: Request, body: bytes) -> Response:
        url = self.server.base_url.copy_with(raw_path=_target(request))
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        if _THEIR_COOKIE in request.cookies:
            headers["cookie"] = f"{_THEIR_COOKIE}={request.cookies[_THEIR_COOKIE]}"
        forwarded = self.server.build_request(request.method, url, headers=headers, content=body)
        return _to_response(request, await self._send(forwarded))

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await self.server.send(request, stream=True)
        except httpx2.TransportError as error:
            log.warning("temporal_ui.away", error=str(error))
            raise ServiceUnavailable("The Temporal Web UI does not answer.", server="temporal") from error


def _to_response(request: Request, answer: httpx2.Response) -> Response:
    response = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
    headers = MutableHeaders(raw=[])
    for name in _PASSED_BACK:
        for value in answer.headers.get_list(name):
            headers.append(name, value)
    for cookie in answer.headers.get_list("set-cookie"):
        if cookie.startswith(f"{_THEIR_COOKIE}="):
            headers.append("set-cookie", cookie)
    for name, value in _HEADERS.items():
        headers[name] = value
    headers.append("content-security-policy", _POLICY)  # in addition to its own: browsers enforce both
    is_page = answer.headers.get("content-type", "").startswith("text/html")  # also sent for unknown paths
    lasts = request.url.path.startswith(_LASTING) and answer.is_success and not is_page
    headers.update(_KEPT if lasts else {"cache-control": "no-store"})
    response.raw_headers = headers.raw
    return response


def _to_sign_in(request: Request) -> Response:
    if request.method == "GET" and request.url.path == _VERSION:
        # An open page requests this when a script fails to load; another version makes it reload, as our sign-in page.
        return JSONResponse({"version": ""}, headers={**_HEADERS, "Cache-Control": "no-store"})
    if request.method != "GET" or not problems.wants_page(request):
        raise NotSignedIn
    page = HTMLResponse(sign_in_page("The Temporal Web UI needs a signed-in browser."), HTTPStatus.UNAUTHORIZED)
    wanted = _target(request).decode("ascii", errors="replace")
    if len(wanted) <= _LONGEST_RETURN and _OWN_PATH.fullmatch(wanted):
        page.set_cookie(
            RETURN_COOKIE,
            quote(wanted),
            max_age=RETURN_LIFETIME_S,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
    page.headers.update({**_HEADERS, "Content-Security-Policy": _POLICY, "Cache-Control": "no-store"})
    return page


def _styles() -> Response:
    """Our style sheet, for the sign-in page."""
    answer = styles()
    answer.headers.update({**_HEADERS, "Content-Security-Policy": _POLICY, "Cache-Control": "no-store"})
    return answer


def _target(request: Request) -> bytes:
    """Path and query as received: an encoded slash stays encoded."""
    query: bytes = request.scope["query_string"]
    raw: bytes = request.scope["raw_path"]
    return raw + (b"?" + query if query else b"")


def _path(request: Request) -> str:
    raw: bytes = request.scope["raw_path"]
    path = raw.decode("ascii", errors="replace")
    if ".." in unquote(path).split("/"):
        raise InvalidRequest("The path must not contain `..` segments.")
    return path


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BIGGEST_BODY:
            raise InvalidRequest(f"The body is larger than {BIGGEST_BODY} bytes.")
    return body


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_for_operators(batch: bytes) -> bool:
    """Whether a batch only does what operators may do to each run; what cannot be read is not."""
    fields = _read_object(batch)
    return fields is not None and {name.replace("_", "").lower() for name in fields} <= _BATCH_FIELDS


def _reason(body: bytes) -> str:
    reason = (_read_object(body) or {}).get("reason", "")
    return reason[:LONGEST_REASON] if isinstance(reason, str) else ""


def _read_object(body: bytes) -> dict[str, Any] | None:
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None
