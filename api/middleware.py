"""Around every request: paths without trailing slash, bodies of bounded size, headers that keep browsers safe."""

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BIGGEST_BODY = 1024 * 1024
UPLOADS = "/api/uploads/"
"""these go to disk as they come, under a limit of their own"""

_POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": _POLICY,
}


class Edge:
    """The outermost layer. A LocalAI worker refuses redirects, so a trailing slash is dropped in place."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].rstrip("/") or "/"
        is_upload = scope["method"] == "PUT" and path.startswith(UPLOADS)
        await self._app({**scope, "path": path}, receive if is_upload else _bounded(receive), _with_headers(send))


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _bounded(receive: Receive) -> Receive:
    """No request of ours needs more; a bigger one is refused before it is held in memory."""
    received = 0

    async def receiving() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > BIGGEST_BODY:
            raise HTTPException(413, f"The body is bigger than {BIGGEST_BODY} bytes.")
        return message

    return receiving
