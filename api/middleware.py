"""Applied to every request: trailing slashes removed, body size limited, security headers added."""

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BIGGEST_BODY = 1024 * 1024
UPLOADS = "/api/v1/uploads/"
"""these are streamed to disk, under their own limit"""

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
    )
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""headers of every response, refusals included"""
_WITH_TLS = {"Strict-Transport-Security": "max-age=15552000"}
"""180 days; browsers ignore it for untrusted certificates and for bare addresses"""


class RequestBounds:
    """The outermost layer. LocalAI workers refuse redirects, so a trailing slash is removed in place."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].rstrip("/") or "/"
        is_upload = scope["method"] == "PUT" and path.startswith(UPLOADS)
        headers = _HEADERS | _WITH_TLS if scope["scheme"] == "https" else _HEADERS
        await self._app({**scope, "path": path}, receive if is_upload else _bounded(receive), _adding(headers, send))


def _adding(added: Mapping[str, str], send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in added.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _bounded(receive: Receive) -> Receive:
    """Refuse a body that is too large before it is held in memory."""
    received = 0

    async def receiving() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > BIGGEST_BODY:
            raise HTTPException(413, f"The body is larger than {BIGGEST_BODY} bytes.")
        return message

    return receiving
