"""The echo backend: GET /healthz says whether it is fit for work, POST /echo sends back what came."""

import argparse
import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def main() -> None:
    release = json.loads(Path(__file__).with_name("release.json").read_text())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addr", default="127.0.0.1:0", metavar="HOST:PORT")
    host, _, port = parser.parse_args().addr.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), handler_of(release))
    print(f"echo {release['version']} listens on {host}:{server.server_port}")  # noqa: T201 - the backend's own output
    server.serve_forever()


def handler_of(release: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    """Make the handler of one release: versions differ in their release.json alone."""

    class Echo(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/healthz":
                return self.send_error(HTTPStatus.NOT_FOUND)
            status = HTTPStatus.OK if release["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE
            return self.answer(status, json.dumps(release).encode())

        def do_POST(self) -> None:
            if self.path != "/echo":
                return self.send_error(HTTPStatus.NOT_FOUND)
            return self.answer(HTTPStatus.OK, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        def answer(self, status: HTTPStatus, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if release["signs_answers"]:
                self.send_header("X-Echo-Version", release["version"])
            self.end_headers()
            self.wfile.write(body)

    return Echo


if __name__ == "__main__":
    main()
