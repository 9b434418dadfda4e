"""A backend that makes folders in folders in its home, deeper than a path can name, then serves a health route."""

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

DEPTH = 3000


def dig(folder: Path) -> None:
    os.chdir(folder)
    for _ in range(DEPTH):
        os.mkdir("d")  # noqa: PTH102 - a Path that deep has no name
        os.chdir("d")
    os.chdir(folder)


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


if __name__ == "__main__":
    dig(Path.home())
    host, _, port = sys.argv[sys.argv.index("--addr") + 1].rpartition(":")
    HTTPServer((host, int(port)), Healthy).serve_forever()
