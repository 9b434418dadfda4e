"""One request of a client, as it was parsed, and the head that a replica receives."""

from collections.abc import Iterable

from nodesmith.gateway.api_keys import ClientKey
from nodesmith.gateway.bodies import Body

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_FORWARDED = _HOP_BY_HOP | {b"authorization", b"x-api-key", b"content-length", b"expect"}
"""the API key is for the gateway: a backend must not see it"""
_BEARER = b"bearer "
Header = tuple[bytes, bytes]


class Request:
    """Grows while the client sends it."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.method = b""
        self.target = b""
        self.raw_headers: list[Header] = []
        self.headers: dict[bytes, bytes] = {}
        """by lower-case name; of several with one name, the last"""
        self.version = "1.1"
        self.keep_alive = True
        self.key: ClientKey | None = None
        """who asks; None until the key is checked"""

    def add_header(self, name: bytes, value: bytes) -> None:
        self.raw_headers.append((name, value))
        self.headers[name.lower()] = value

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    @property
    def query(self) -> bytes:
        return self.target.partition(b"?")[2].partition(b"#")[0]

    @property
    def credential(self) -> str:
        """The API key: `Authorization: Bearer KEY` or `X-Api-Key: KEY`; empty without one."""
        given = self.headers.get(b"authorization", b"")
        if given[: len(_BEARER)].lower() == _BEARER:
            return given[len(_BEARER) :].strip().decode("latin-1")
        return self.headers.get(b"x-api-key", b"").strip().decode("latin-1")

    def head(self) -> bytes:
        """The head for a replica: what the client sent, without what concerns this connection and the API key."""
        lines = [b"%s %s HTTP/1.1" % (self.method, self.target)]
        dropped = _NOT_FORWARDED | _named_in(self.headers.get(b"connection", b""))
        lines += [b"%s: %s" % header for header in self.raw_headers if header[0].lower() not in dropped]
        if self.body.size or self.method not in (b"GET", b"HEAD"):
            lines.append(b"content-length: %d" % self.body.size)
        return b"\r\n".join([*lines, b"", b""])


def response_head(
    status: int, reason: bytes, headers: Iterable[Header], *, chunked: bool, close: bool, replica: str
) -> bytes:
    """The head for the client: what the replica sent, with the framing of this connection."""
    lines = [b"HTTP/1.1 %d %s" % (status, reason)]
    lines += [b"%s: %s" % header for header in headers if header[0].lower() not in _HOP_BY_HOP]
    lines.append(b"x-nodesmith-replica: %s" % replica.encode("ascii", "replace"))
    if chunked:
        lines.append(b"transfer-encoding: chunked")
    lines.append(b"connection: close" if close else b"connection: keep-alive")
    return b"\r\n".join([*lines, b"", b""])


def _named_in(connection: bytes) -> frozenset[bytes]:
    """Headers that the client declares to be for this connection only."""
    return frozenset(name.strip().lower() for name in connection.split(b",") if name.strip())
