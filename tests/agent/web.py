"""A real web server for tests: serves artifacts, misbehaves on demand, and speaks register like the control plane."""

import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bus.credentials import CredentialIssuer

_BLOCK = 64 * 1024


@dataclass
class Served:
    """One path and how it behaves."""

    content: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    etag: str = '"v1"'
    ranges: bool = True
    tells_size: bool = True
    stops_at: int | None = None
    """waits at this byte until `gate` is set"""
    breaks_at: int | None = None
    """closes the connection at this byte, once"""
    gate: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    """set when `stops_at` was reached"""


@dataclass
class Seen:
    """A request as it came in, and how many bytes of body it was given."""

    path: str
    headers: Message
    sent: int = 0


@dataclass
class Registered:
    id: str
    name: str
    credential: str
    approved: bool
    body: dict[str, Any]


class Web:
    """What the server serves and what it has seen; threads of the server use it too."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.seen: list[Seen] = []
        self.heartbeats: list[str] = []
        self.registrations: list[dict[str, Any]] = []
        self.nodes: dict[str, Registered] = {}
        self.registration_token = "let-me-in"
        self.admin_token = "admin"
        self.approves = True
        self.left: list[tuple[str, str]] = []
        """nodes that said goodbye, and which boot did"""
        self.removed: set[str] = set()
        """credentials of nodes that were removed"""
        self.in_use_by = ""
        """the boot that is the node; every other one is refused"""
        self.lifetime = timedelta(hours=24)
        self.nats_url = ""
        self.issuer: CredentialIssuer | None = None
        self.url = ""

    def serve(self, path: str, content: bytes, **how: Any) -> Served:
        self.files[path] = Served(content, **how)
        return self.files[path]

    def requests(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]

    def register(self, body: dict[str, Any], bearer: str) -> tuple[int, dict[str, Any]]:
        known = self.nodes.get(body["name"])
        own = known is not None and bearer == known.credential
        if bearer in self.removed:
            return 410, {"detail": "Node was removed by an admin."}
        if self.in_use_by and body.get("boot_id") != self.in_use_by:
            return 409, {"detail": "Another process is this node already."}
        if not own and bearer != self.registration_token:
            return 401, {"detail": "The registration token is wrong or missing."}
        fresh = None if own else uuid.uuid4().hex
        node = known or Registered(str(uuid.uuid4()), body["name"], "", self.approves, body)
        node.credential = fresh or node.credential
        node.body = body
        self.nodes[body["name"]] = node
        self.registrations.append({**body, "bearer": bearer})
        return 201, self._answer(node, fresh)

    def approve(self, node_id: str) -> None:
        for node in self.nodes.values():
            node.approved = node.approved or node.id == node_id

    def _answer(self, node: Registered, fresh: str | None) -> dict[str, Any]:
        answer = {
            "id": node.id,
            "name": node.name,
            "node_type": "backend",
            "status": "healthy" if node.approved else "pending",
            "created_at": datetime.now(UTC).isoformat(),
            "api_token": fresh,
        }
        if not node.approved or self.issuer is None:
            return answer
        protocol = node.body.get("protocol", 1)
        credential = self.issuer.node_credential(node.id, protocol=protocol, lifetime=self.lifetime)
        return answer | {
            "nats_jwt": credential.jwt,
            "nats_user_seed": credential.seed,
            "nats_url": self.nats_url,
            "expires_at": credential.expires_at.isoformat(),
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Quiet."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.path == "/api/node/register":
            return self._json(*self.web.register(body, bearer))
        if match := re.fullmatch(r"/api/nodes/([^/]+)/approve", self.path):
            if bearer != self.web.admin_token:
                return self._json(401, {"detail": "A valid token is needed."})
            self.web.approve(match[1])
            return self._json(200, {"message": "node approved"})
        if match := re.fullmatch(r"/api/node/([^/]+)/heartbeat", self.path):
            self.web.heartbeats.append(match[1])
            return self._json(200, {"message": "heartbeat received"})
        if match := re.fullmatch(r"/api/node/([^/]+)/deregister", self.path):
            self.web.left.append((match[1], body.get("boot_id", "")))
            return self._json(200, {"message": "node set to offline"})
        return self._json(404, {"detail": "nothing here"})

    def do_GET(self) -> None:
        seen = Seen(self.path.partition("?")[0], self.headers)
        self.web.seen.append(seen)
        file = self.web.files.get(seen.path)
        if file is None:
            return self._json(404, {"detail": "nothing here"})
        if file.status != 200:
            return self._json(file.status, {"detail": "not now"}, file.headers)
        return self._send_file(file, seen)

    def _send_file(self, file: Served, seen: Seen) -> None:
        start = self._wanted_start(file)
        if start >= len(file.content) > 0:
            return self._json(416, {"detail": "no such range"})
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(file.content) - 1}/{len(file.content)}")
        if file.etag:
            self.send_header("ETag", file.etag)
        if file.tells_size:
            self.send_header("Content-Length", str(len(file.content) - start))
        else:
            self.send_header("Connection", "close")
        for name, value in file.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = not file.tells_size
        return self._send_body(file, start, seen)

    def _wanted_start(self, file: Served) -> int:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match is None or not file.ranges or self.headers.get("If-Range", file.etag) != file.etag:
            return 0
        return int(match[1])

    def _send_body(self, file: Served, start: int, seen: Seen) -> None:
        position = start
        try:
            while position < len(file.content):
                position = self._send_block(file, position)
                seen.sent = position - start
                if position == file.breaks_at:
                    file.breaks_at = None
                    self.close_connection = True
                    return
                if position == file.stops_at:
                    file.reached.set()
                    file.gate.wait(60)
        except OSError:
            self.close_connection = True

    def _send_block(self, file: Served, position: int) -> int:
        marks = [mark for mark in (file.stops_at, file.breaks_at) if mark is not None and mark > position]
        end = min([position + _BLOCK, len(file.content), *marks])
        self.wfile.write(file.content[position:end])
        self.wfile.flush()
        return end

    def _json(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512


@contextmanager
def running(port: int = 0) -> Iterator[Web]:
    """Serve on a free port of the loopback until the block ends."""
    web = Web()
    handler = type("Handler", (_Handler,), {"web": web})
    server = _Server(("127.0.0.1", port), handler)
    web.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        for file in web.files.values():
            file.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
