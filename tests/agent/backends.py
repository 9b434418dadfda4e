"""Small real backends: the built-in echo in several versions, and one with a child process."""

import asyncio
import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from nodesmith.bus.running_models import ModelsClient
from nodesmith.contracts.nats.running_models import RunningModel
from tests.agent.archives import built, regular
from tests.agent.nodes import LONG, Node

ECHO = Path(__file__).parents[2] / "gallery" / "builtin_backends" / "echo" / "shared"


@functools.cache
def echo(version: str, *, healthy: bool = True) -> bytes:
    release = {"version": version, "healthy": healthy, "signs_answers": True}
    return built(
        regular("run.sh", (ECHO / "run.sh").read_bytes()),
        regular("server.py", (ECHO / "server.py").read_bytes()),
        regular("release.json", json.dumps(release).encode()),
    )


def with_a_child() -> bytes:
    """A backend whose shell ignores SIGTERM and has a child that does the same."""
    script = b"""#!/bin/sh
trap '' TERM
sh -c 'trap "" TERM; sleep 300' &
echo "my child is $!"
"${PYTHON:-python3}" -u -c 'import signal, sys; signal.signal(15, signal.SIG_IGN); sys.path.insert(0, "."); \
sys.argv = ["server.py"] + sys.argv[1:]; import server; server.main()' "$@"
"""
    release = {"version": "1", "healthy": True, "signs_answers": True}
    return built(
        regular("run.sh", script),
        regular("server.py", (ECHO / "server.py").read_bytes()),
        regular("release.json", json.dumps(release).encode()),
    )


def polite(version: str) -> bytes:
    """A backend that takes a second to answer /slow, and finishes the answer on SIGTERM."""
    server = b"""
import json, signal, sys, threading, time
from http.server import ThreadingHTTPServer
from pathlib import Path
import server

release = json.loads(Path("release.json").read_text())

class Slow(server.handler_of(release)):
    def do_GET(self):
        if self.path == "/slow":
            time.sleep(1)
            return self.answer(200, b"slow")
        return super().do_GET()

ThreadingHTTPServer.daemon_threads = False
host, _, port = sys.argv[sys.argv.index("--addr") + 1].rpartition(":")
listening = ThreadingHTTPServer((host, int(port)), Slow)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=listening.shutdown).start())
listening.serve_forever()
listening.server_close()
"""
    release = {"version": version, "healthy": True, "signs_answers": True}
    return built(
        regular("run.sh", b'#!/bin/sh\nexec "${PYTHON:-python3}" -u polite.py "$@"\n'),
        regular("polite.py", server),
        regular("server.py", (ECHO / "server.py").read_bytes()),
        regular("release.json", json.dumps(release).encode()),
    )


async def running(models: ModelsClient, node: Node) -> dict[str, RunningModel]:
    reply = await models.running(node.id, within=LONG)
    return {f"{model.model_id}#{model.replica_index}": model for model in reply.models}


async def wait_running(models: ModelsClient, node: Node, wanted: Callable[[dict[str, RunningModel]], object]) -> None:
    async with asyncio.timeout(LONG):
        while not wanted(await running(models, node)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@dataclass
class Caller:
    """A client that calls every 20 ms, and looks the address up again when a call fails."""

    models: ModelsClient
    node: Node
    answers: list[str] = field(default_factory=list)
    failures: int = 0
    longest_outage: float = 0.0
    _address: str = ""

    async def call_until(self, stop: asyncio.Event) -> None:
        last_answer = time.monotonic()
        async with httpx2.AsyncClient(timeout=5.0) as http:
            while not stop.is_set():
                if await self._call(http):
                    last_answer = time.monotonic()
                self.longest_outage = max(self.longest_outage, time.monotonic() - last_answer)
                await asyncio.sleep(0.02)

    async def _call(self, http: httpx2.AsyncClient) -> bool:
        try:
            self._address = self._address or (await running(self.models, self.node))["echo#0"].address
            response = await http.post(f"http://{self._address}/echo", content=b"hello")
        except (httpx2.HTTPError, KeyError):
            self.failures += 1
            self._address = ""
            return False
        self.answers.append(response.headers["X-Echo-Version"])
        return response.content == b"hello"
