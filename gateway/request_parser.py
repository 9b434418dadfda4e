"""Parses the requests of one connection, within the limits for heads."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

import httptools

from nodesmith.gateway.answers import Refusal, bad_request
from nodesmith.gateway.bodies import Body
from nodesmith.gateway.requests import Request
from nodesmith.runtime.connection_limits import ConnectionLimits

_PART = 16 * 1024
"""bytes that are parsed between two checks of the limits"""
_OFFER = frozenset({b"upgrade", b"http2-settings", b"connection"})


class Listener(Protocol):
    """Is told what was parsed. Each method may raise a refusal."""

    def head_received(self, request: Request) -> None: ...
    def body_received(self, size: int) -> None: ...
    def request_received(self, request: Request) -> None: ...


class RequestParser:
    """`feed` raises a refusal for what is no request, or exceeds a limit; the parser is of no use then."""

    def __init__(self, listener: Listener, limits: ConnectionLimits, new_body: Callable[[], Body]) -> None:
        self._listener = listener
        self._limits = limits
        self._new_body = new_body
        self._parser = httptools.HttpRequestParser(self)
        self.request: Request | None = None
        """being received"""
        self._bare_bytes = 0
        """bytes received since the last byte of body, or since the end of a request"""
        self._head_bytes = 0
        """of the headers so far"""

    def feed(self, data: bytes | bytearray) -> None:
        try:
            for start in range(0, len(data), _PART):
                self._feed(bytes(data[start : start + _PART]))
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Refusal):  # raised in one of the callbacks below
                raise error.__context__ from None
            raise bad_request("bad_request", "The request is not HTTP/1.1.") from error

    def _feed(self, part: bytes) -> None:
        self._bare_bytes += len(part)
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed(self._head_without_offer() + part[int(upgrade.args[0]) :])
        if self._bare_bytes > self._limits.head_bytes:
            raise _too_large("The headers are too large.")

    def _head_without_offer(self) -> bytes:
        """The head of the request without its offer to speak another protocol, to be parsed by a new parser."""
        request, method = self.request, self._parser.get_method()
        if request is None or method == b"CONNECT":
            raise bad_request("bad_request", "The gateway is no proxy.")
        self._parser = httptools.HttpRequestParser(self)
        kept = [b"%s: %s" % header for header in request.raw_headers if header[0].lower() not in _OFFER]
        return b"\r\n".join([b"%s %s HTTP/1.1" % (method, request.target), *kept, b"", b""])

    # httptools

    def on_message_begin(self) -> None:
        self._bare_bytes = self._head_bytes = 0
        self.request = Request(self._new_body())

    def on_url(self, url: bytes) -> None:
        if self.request is not None:
            self.request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.request is None:
            return
        self.request.add_header(name, value)
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes:
            raise _too_large("The headers are too large.")
        if len(self.request.raw_headers) > self._limits.headers:
            raise _too_large("There are too many headers.")

    def on_headers_complete(self) -> None:
        if self.request is None or self._parser.should_upgrade():
            return
        self.request.method = self._parser.get_method()
        self.request.version = self._parser.get_http_version()
        self.request.keep_alive = self._parser.should_keep_alive()
        self._listener.head_received(self.request)

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        if self.request is not None:
            self.request.body.add(body)
            self._listener.body_received(len(body))

    def on_message_complete(self) -> None:
        self._bare_bytes = 0
        if self.request is None or self._parser.should_upgrade():
            return
        request, self.request = self.request, None
        self._listener.request_received(request)


def _too_large(text: str) -> Refusal:
    return Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", text)
