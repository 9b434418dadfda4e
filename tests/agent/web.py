"""A real web server for tests: serves artifacts, injects faults, and implements the registration API."""

import json
import re
import ssl
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from nodesmith.runtime.replica_certificates import ReplicaAuthority
from nodesmith.stack.certificates import Certificates
from tests.orders import shared_keyring
from tests.servers import IssuerForTests

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
    """waits at this byte until `released` is set"""
    breaks_at: int | None = None
    """closes the connection at this byte, once"""
    always_breaks_at: int | None = None
    """closes the connection at this byte, each time"""
    at_most: int | None = None
    """serves at most that many bytes of a requested range, as RFC 9110 allows"""
    claims: int | None = None
    """declared Content-Length, independent of the body"""
    ignores_if_range: bool = False
    silent: bool = False
    """does not respond until `released` is set"""
    drips: bool = False
    """sends single bytes with pauses"""
    token: str = ""
    """required bearer token; `/token` issues it for the password"""
    basic: str = ""
    """required Authorization header"""
    cut: bool = False
    """close the connection that waits at `stops_at`, once"""
    released: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    """set when `stops_at` was reached"""


@dataclass
class Seen:
    """A received request, and how many bytes of body were sent."""

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
    """Served content and received requests; shared with the server's threads."""

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
        """deregistered nodes, with their boot id"""
        self.removed: set[str] = set()
        """credentials of nodes that were removed"""
        self.removed_why = "removed"
        self.throttled: list[str] = []
        """each answers one registration with 429 and this Retry-After"""
        self.is_away = False
        """simulates a control plane that is down"""
        self.in_use_by = ""
        """the accepted boot id; every other one is refused"""
        self.lifetime = timedelta(hours=24)
        self.nats_url = ""
        self.issuer: IssuerForTests | None = None
        self.authority: ReplicaAuthority | None = None
        """signs the certificates of nodes"""
        self.url = ""
        self.access: dict[str, dict[str, str]] = {}
        """configured access per host"""
        self.keyring = shared_keyring()
        """keyring whose trust lists are served"""
        self.newest_orders: dict[str, int] = {}
        self.token = "token-of-the-registry"
        self.token_credential = ""
        """Authorization that `/token` requires; empty: none"""
        self.token_padding = 0
        """bytes that `/token` sends beside the token"""

    def serve(self, path: str, content: bytes, **how: Any) -> Served:
        self.files[path] = Served(content, **how)
        return self.files[path]

    def challenge(self, file: Served, headers: Message) -> str:
        """Return the WWW-Authenticate challenge for an unauthorized request; empty if it is authorized."""
        given = headers.get("Authorization", "")
        if file.token and given != f"Bearer {file.token}":
            return f'Bearer realm="{self.url}/token",service="test",scope="repository:x:pull"'
        if file.basic and given != file.basic:
            return 'Basic realm="test"'
        return ""

    def requests(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]

    def register(self, body: dict[str, Any], bearer: str) -> tuple[Any, ...]:
        if self.throttled:
            return 429, {"detail": "not now"}, {"Retry-After": self.throttled.pop(0)}
        known = self.nodes.get(body["name"])
        own = known is not None and bearer == known.credential
        if self.is_away:
            return 503, {"detail": "PostgreSQL does not answer."}
        if bearer in self.removed:
            return 410, {"detail": "Node was removed by an admin.", "why": self.removed_why}
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
            "trust_version": self.keyring.version,
            "newest_orders": self.newest_orders,
        }
        if not node.approved or self.issuer is None:
            return answer
        protocol = node.body.get("protocol", 1)
        key = node.body.get("nats_key", "")
        credential = self.issuer.node_credential(node.id, protocol=protocol, lifetime=self.lifetime, user=key)
        return answer | {
            "nats_jwt": credential.jwt,
            "nats_user_seed": credential.seed or None,
            "nats_url": self.nats_url,
            "expires_at": credential.expires_at.isoformat(),
            **self._certificate(node),
        }

    def _certificate(self, node: Registered) -> dict[str, str]:
        request = node.body.get("certificate_request", "")
        if self.authority is None or not request:
            return {}
        return {"certificate": self.authority.sign_node(request, node.id), "certificate_ca": self.authority.ca}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.path == "/api/node/register":
            return self._json(*self.web.register(body, bearer))
        if match := re.fullmatch(r"/api/v1/nodes/([^/]+)/approve", self.path):
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

    def do_GET(self) -> None:  # noqa: PLR0911 - one for each kind of path
        seen = Seen(self.path.partition("?")[0], self.headers)
        if seen.path == "/api/v1/trust":
            return self._trust()
        self.web.seen.append(seen)
        file = self.web.files.get(seen.path)
        if seen.path == "/token":
            return self._token()
        if re.fullmatch(r"/api/node/[^/]+/sources", seen.path):
            host = parse_qs(self.path.partition("?")[2])["host"][0]
            return self._json(200, self.web.access[host]) if host in self.web.access else self._json(404, {})
        if file is None:
            return self._json(404, {"detail": "nothing here"})
        if challenge := self.web.challenge(file, self.headers):
            return self._json(401, {"detail": "who are you?"}, {"WWW-Authenticate": challenge})
        if file.silent:
            file.reached.set()
            file.released.wait(60)
        if file.status != 200:
            return self._json(file.status, {"detail": "not now"}, file.headers)
        return self._send_file(file, seen)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _trust(self) -> None:
        status = 503 if self.web.is_away else 200
        self._json(status, json.loads(self.web.keyring.chain().model_dump_json()))

    def _token(self) -> None:
        if self.web.token_credential and self.headers.get("Authorization") != self.web.token_credential:
            return self._json(401, {"detail": "wrong password"})
        return self._json(200, {"token": self.web.token, "padding": "x" * self.web.token_padding})

    def _send_file(self, file: Served, seen: Seen) -> None:
        start = self._wanted_start(file)
        if start >= len(file.content) > 0:
            return self._json(416, {"detail": "no such range"})
        end = min(len(file.content), start + (file.at_most or len(file.content)))
        is_part = (start, end) != (0, len(file.content))
        self.send_response(206 if is_part else 200)
        if is_part:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(file.content)}")
        if file.etag:
            self.send_header("ETag", file.etag)
        if file.tells_size:
            self.send_header("Content-Length", str((file.claims or end) - start))
        else:
            self.send_header("Connection", "close")
        for name, value in file.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = not file.tells_size or file.claims is not None
        return None if self.command == "HEAD" else self._send_body(file, start, end, seen)

    def _wanted_start(self, file: Served) -> int:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        changed = self.headers.get("If-Range", file.etag) != file.etag and not file.ignores_if_range
        if match is None or not file.ranges or changed:
            return 0
        return int(match[1])

    def _send_body(self, file: Served, start: int, stop: int, seen: Seen) -> None:
        position = start
        try:
            while position < stop:
                if self._ends_at(file, position):
                    self.close_connection = True
                    return
                position = self._send_block(file, position, stop)
                seen.sent = position - start
        except OSError:
            self.close_connection = True

    def _ends_at(self, file: Served, position: int) -> bool:
        """Whether the connection is closed before this byte; waits there if it has to."""
        if file.always_breaks_at is not None and position >= file.always_breaks_at:
            return True
        if position == file.breaks_at:
            file.breaks_at = None
            return True
        if position == file.stops_at:
            file.reached.set()
            file.released.wait(60)
            was_cut, file.cut = file.cut, False
            return was_cut
        return False

    def _send_block(self, file: Served, position: int, stop: int) -> int:
        marks = [file.stops_at, file.breaks_at, file.always_breaks_at]
        ahead = [mark for mark in marks if mark is not None and mark > position]
        end = min([position + (1 if file.drips else _BLOCK), stop, *ahead])
        if file.drips and file.released.wait(0.02):
            raise OSError("stopped by the test")
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
        if self.command != "HEAD":
            self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that abort the handshake because they do not trust the certificate."""
        if not isinstance(sys.exception(), ssl.SSLError | OSError):
            super().handle_error(request, client_address)


@contextmanager
def running(port: int = 0, certificates: Certificates | None = None) -> Iterator[Web]:
    """Serve on a free port of the loopback until the block ends; with certificates, over TLS."""
    web = Web()
    handler = type("Handler", (_Handler,), {"web": web})
    server = _Server(("127.0.0.1", port), handler)
    web.url = f"http{'s' if certificates else ''}://127.0.0.1:{server.server_port}"
    if certificates:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates.server, certificates.server_key)
        # Each connection's thread makes its own handshake, so one that hangs does not block the others.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        for file in web.files.values():
            file.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
