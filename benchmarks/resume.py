"""Measures a resumed download: limited rate, connection cut three times, agent killed at 90 %.

`python -m benchmarks.resume [BYTES]`; reports all bytes sent relative to the artifact's size (bar: 1.02).
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2

from benchmarks.artifacts import LOOPBACK, SIZE, make_archive
from nodesmith.agent.assembly import AgentAssembly
from nodesmith.agent.operations.job import Job
from nodesmith.agent.operations.progress import Gauge
from nodesmith.agent.settings import AgentSettings
from nodesmith.contracts.nats.messages import Command, Progress
from nodesmith.domain.kinds import Kind

SECONDS = 20
CUTS = (0.25, 0.5, 0.75)
KILLED_AT = 0.9
BAR = 1.02
_BLOCK = 256 * 1024


class Link:
    """Counts the bytes that it sends, and can be cut."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.sent = 0
        self.connections = 0
        self._lock = threading.Lock()
        self._cut = threading.Event()

    def cut(self) -> None:
        self._cut.set()

    def send(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        self._cut.clear()
        with self.archive.open("rb") as file:
            file.seek(start)
            while (block := file.read(_BLOCK)) and not self._cut.is_set():
                handler.wfile.write(block)
                with self._lock:
                    self.sent += len(block)


@contextlib.contextmanager
def served(link: Link) -> Iterator[str]:
    size = link.archive.stat().st_size

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(found[1]) if found else 0
            link.connections += 1
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - start))
            self.send_header("ETag", '"bench"')
            self.end_headers()
            with contextlib.suppress(OSError):
                link.send(self, start)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/artifact.tar"
    finally:
        server.shutdown()
        server.server_close()


async def install(url: str, home: Path, sha256: str, size: int) -> None:
    """Run the agent's process for one command."""

    async def ignore(_progress: Progress) -> None:
        pass

    settings = AgentSettings(
        home=home, name="bench", disk_headroom=0, bandwidth_limit=size // SECONDS, source_networks=LOOPBACK
    )
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:9") as http:
        shop = AgentAssembly(settings, http, lambda: ("", ""))
        await shop.recover()
        command = Command(
            op_id="op", kind=Kind.INSTALL, family="bench", backend="bench", uri=url, sha256=sha256, size=size
        )
        job = Job(command, Gauge(command, ignore, every=0.25))
        done = await shop.installer.perform(job)
        await job.gauge.close()
        await shop.close()
    print(json.dumps({"changed": done.changed, "reused": job.bytes_reused}))


def run_with_faults(url: str, home: Path, sha256: str, link: Link) -> str:
    """Cut the connection three times, kill the agent, start it again; return the last process's output."""
    size = link.archive.stat().st_size
    command = [sys.executable, "-m", "benchmarks.resume", "install", url, str(home), sha256, str(size)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    partial = home / "downloads" / f"{sha256}.part"
    for share in CUTS:
        _wait_for_size(partial, share * size)
        link.cut()
    _wait_for_size(partial, KILLED_AT * size)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    return again.stdout.strip().splitlines()[-1]


def _wait_for_size(partial: Path, size: float) -> None:
    while not partial.exists() or partial.stat().st_size < size:
        time.sleep(0.005)


def main(size: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-resume-"))
    try:
        link = Link(make_archive(folder, size))
        with link.archive.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        began = time.perf_counter()
        with served(link) as url:
            result = json.loads(run_with_faults(url, folder / "home", sha256, link))
        whole = link.archive.stat().st_size
        report = {
            "size": whole,
            "sent_in_all": link.sent,
            "ratio": round(link.sent / whole, 4),
            "bar": BAR,
            "connections": link.connections,
            "last_process": result,
            "seconds": round(time.perf_counter() - began, 1),
        }
        print(json.dumps(report, indent=1))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["install"]:
        os.environ.pop("NODESMITH_AGENT_BANDWIDTH_LIMIT", None)
        asyncio.run(install(sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else SIZE)
