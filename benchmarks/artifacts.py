"""Measures download, verification and unpacking of 1 GB against `curl | tee >(sha256sum) | tar x`, in one run.

`python -m benchmarks.artifacts [BYTES]`; a local server sends the same file to both, in turn.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path

import httpx2
import psutil

from nodesmith.agent.assembly import AgentAssembly
from nodesmith.agent.operations.installer import Installer
from nodesmith.agent.operations.job import Job
from nodesmith.agent.operations.progress import Gauge
from nodesmith.agent.settings import AgentSettings
from nodesmith.contracts.nats.messages import Command, Progress
from nodesmith.domain.kinds import Kind

SIZE = 1_000_000_000
ROUNDS = 5
FILES = 20
BAR, GOAL = 0.85, 0.95
RSS_BAR = 40_000_000
LOOPBACK = (ip_network("127.0.0.0/8"),)
"""the network of the benchmark's server"""


def make_archive(folder: Path, size: int) -> Path:
    """Pack random bytes in a few large files, similar to weights and libraries."""
    content = folder / "content"
    content.mkdir()
    (content / "run.sh").write_text("#!/bin/sh\nexec sleep infinity\n")
    for number in range(FILES):
        (content / f"part-{number}").write_bytes(os.urandom(size // FILES))
    archive = folder / "artifact.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(content, ".")
    shutil.rmtree(content)
    return archive


def serve(archive: str, port_file: str) -> None:
    """Run the server process; it uses sendfile to keep its own cost low."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with Path(archive).open("rb") as file:
                self.send_response(200)
                self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
                self.send_header("ETag", '"bench"')
                self.end_headers()
                self.wfile.flush()
                with contextlib.suppress(OSError):
                    self.connection.sendfile(file)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Path(port_file).write_text(str(server.server_port))
    server.serve_forever()


@contextlib.contextmanager
def served(archive: Path, folder: Path) -> Iterator[str]:
    port_file = folder / "port"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.artifacts", "serve", archive, port_file])
    try:
        while not port_file.exists() or not port_file.read_text():
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port_file.read_text()}/artifact.tar"
    finally:
        process.kill()
        process.wait()


def pipe(url: str, folder: Path, sha256: str) -> float:
    """Run the baseline: a shell pipeline."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    line = f"curl -s {url} | tee >(sha256sum > {folder}.sum) | tar x -C {folder}; wait"
    began = time.perf_counter()
    subprocess.run(["/bin/bash", "-c", line], check=True)
    while not Path(f"{folder}.sum").read_text().startswith(sha256):
        time.sleep(0.001)
    return time.perf_counter() - began


async def installed(url: str, home: Path, sha256: str, size: int) -> tuple[float, int]:
    """Install with the agent's code (fetch, verify, unpack, sync, swap); return the seconds and the growth of RSS."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    async with local_installer(home) as installer:
        command = Command(
            op_id="op", kind=Kind.INSTALL, family="bench", backend="bench", uri=url, sha256=sha256, size=size
        )
        job = Job(command, Gauge(command, _ignore, every=0.25))
        began = time.perf_counter()
        with growth() as grown:
            await installer.perform(job)
        took = time.perf_counter() - began
        await job.gauge.close()
    return took, grown[0]


@contextlib.asynccontextmanager
async def local_installer(home: Path) -> AsyncIterator[Installer]:
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:9") as http:
        shop = AgentAssembly(
            AgentSettings(home=home, name="bench", disk_headroom=0, source_networks=LOOPBACK), http, lambda: ("", "")
        )
        await shop.recover()
        try:
            yield shop.installer
        finally:
            await shop.close()


@contextlib.contextmanager
def growth() -> Iterator[list[int]]:
    """Record the largest growth of the process's memory, sampled 50 times a second."""
    process, over, grown = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def watch() -> None:
        while not over.wait(0.02):
            grown[0] = max(grown[0], process.memory_info().rss - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield grown
    finally:
        over.set()
        watching.join()


async def _ignore(_progress: Progress) -> None:
    pass


def main(size: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-artifacts-"))
    try:
        archive = make_archive(folder, size)
        with archive.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        with served(archive, folder) as url:
            report(*compare(url, folder, sha256, archive.stat().st_size))
    finally:
        shutil.rmtree(folder)


def compare(url: str, folder: Path, sha256: str, size: int) -> tuple[list[float], list[float], list[int]]:
    """Alternate both, so that they run under the same conditions."""
    floors, ours, grown = [], [], []
    for _ in range(ROUNDS):
        os.sync()
        floors.append(pipe(url, folder / "pipe", sha256))
        os.sync()
        took, increase = asyncio.run(installed(url, folder / "home", sha256, size))
        ours.append(took)
        grown.append(increase)
    return floors, ours, grown


def report(floors: list[float], ours: list[float], grown: list[int]) -> None:
    ratio = statistics.median(floors) / statistics.median(ours)
    lines = {
        "pipe_s": [round(each, 2) for each in floors],
        "ours_s": [round(each, 2) for each in ours],
        "ratio": round(ratio, 2),
        "bar": BAR,
        "goal": GOAL,
        "rss_growth_mb": round(max(grown) / 1e6, 1),
        "rss_bar_mb": RSS_BAR / 1e6,
    }
    print(json.dumps(lines, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], sys.argv[3])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else SIZE)
