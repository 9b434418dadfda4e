"""A real web server that serves indexes, and misbehaves on demand."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Page:
    content: bytes
    status: int = 200
    etag: str = '"v1"'
    location: str = ""
    hangs: bool = False
    encoding: str = ""


@dataclass
class Site:
    """What is served, and what was asked for."""

    url: str = ""
    pages: dict[str, Page] = field(default_factory=dict)
    seen: list[tuple[str, Message]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def asked(self) -> list[str]:
        return [path for path, _ in self.seen]


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.seen.append((self.path, self.headers))
            page = site.pages.get(self.path, Page(b"", 404))
            same = page.status == 200 and self.headers["If-None-Match"] == page.etag
            self.send_response(304 if same else page.status)
            self.send_header("ETag", page.etag)
            if page.encoding:
                self.send_header("Content-Encoding", page.encoding)
            if page.location:
                self.send_header("Location", page.location)
            self.send_header("Content-Length", "0" if same else str(len(page.content)))
            self.end_headers()
            if page.hangs:
                site.over.wait(30)
            elif not same:
                self.wfile.write(page.content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
