"""An HTTP server with scripted answers, for faults of the API: broken connections, refusals, outages."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


def as_json(body: object, status: int = 200, **headers: str) -> Answer:
    def send(request: BaseHTTPRequestHandler) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    return send


def broken(request: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
    request.close_connection = True
    request.connection.shutdown(socket.SHUT_RDWR)


def as_events(*chunks: str, hold: threading.Event | None = None, is_whole: bool = False) -> Answer:
    """Send these chunks of an event stream, then close the connection, at once or when `hold` is set.

    `is_whole`: end the answer first, as a server does that shuts down in order.
    """

    def send(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for chunk in chunks:
            request.wfile.write(f"{len(chunk.encode()):x}\r\n{chunk}\r\n".encode())
        if hold is not None:
            hold.wait()
        if is_whole:
            request.wfile.write(b"0\r\n\r\n")
        request.close_connection = True

    return send


def _body(request: BaseHTTPRequestHandler) -> Iterator[bytes]:
    if request.headers.get("Transfer-Encoding") != "chunked":
        yield request.rfile.read(int(request.headers.get("Content-Length") or 0))
        return
    while size := int(request.rfile.readline(), 16):
        yield request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()


class ScriptedApi:
    """Answers each path from its list; the last answer is repeated."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = ""

    def on(self, path: str, *answers: Answer) -> None:
        self.answers[path] = list(answers)

    def take(self, request: BaseHTTPRequestHandler) -> Answer:
        path = request.path.partition("?")[0]
        body = b"".join(_body(request))
        self.asked.append((request.command, request.path, dict(request.headers), body))
        left = self.answers.get(path, [as_json({}, status=404)])
        return left.pop(0) if len(left) > 1 else left[0]


@contextlib.contextmanager
def scripted_api() -> Iterator[ScriptedApi]:
    script = ScriptedApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            script.take(self)(self)

        def do_POST(self) -> None:
            script.take(self)(self)

        do_PATCH = do_PUT = do_DELETE = do_POST  # noqa: N815 - names required by http.server

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
