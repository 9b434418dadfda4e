"""`make demo-models`: a client calls a model all the time, while nodes, backend and control plane are taken away.

Three nodes, one deployment with two to four replicas. Load rises; one node is killed with everything on it; one is
drained; the backend is upgraded with overlap; the control plane is killed. The last line counts the calls.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil

MODEL = "words"
FEW, MANY = 2, 24
PATIENCE_S = 120.0
CONTROL_PLANE = ("api", "worker", "temporal", "nats", "postgres")


class DemoFailed(Exception):
    """Something that the demo waits for did not happen."""


@dataclass
class System:
    """`nodesmith up` in a folder of its own."""

    home: Path
    base: int

    def run(self, *arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("nodesmith")), *arguments, "--home", str(self.home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DemoFailed(f"nodesmith {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def read(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def pids(self) -> dict[str, int]:
        return {process["name"]: process["pid"] for process in self.read("status")["processes"]}

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.base + 7}/v1"

    def replicas(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.read("models", "show", MODEL)["replicas"]
        return found

    def kill_node(self, name: str) -> int:
        """kill -9 the agent and all its backends, as if the machine had lost its power; return how many processes."""
        agent = psutil.Process(self.pids()[name])
        processes = [agent, *agent.children(recursive=True)]
        for process in processes:
            process.kill()
        return len(processes)


@dataclass
class Client:
    """Calls the model with a changing number of callers, and notes every call."""

    url: str
    key: str
    wanted: int = FEW
    times: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    replicas: set[str] = field(default_factory=set)
    running: int = 0
    is_stopped: bool = False

    async def run(self) -> None:
        limits = httpx2.Limits(max_connections=None)
        headers = {"Authorization": f"Bearer {self.key}"}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=90, limits=limits) as http,
            asyncio.TaskGroup() as callers,
        ):
            while not self.is_stopped:
                while self.running < self.wanted:
                    self.running += 1
                    callers.create_task(self._call_on(http))
                await asyncio.sleep(0.1)

    async def _call_on(self, http: httpx2.AsyncClient) -> None:
        try:
            while not self.is_stopped and self.running <= self.wanted:
                await self._call(http)
        finally:
            self.running -= 1

    async def _call(self, http: httpx2.AsyncClient) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "A node is"}], "max_tokens": 5}
        began = time.monotonic()
        try:
            answer = await http.post(f"{self.url}/chat/completions", json=body)
        except httpx2.HTTPError as error:
            self.failures.append(f"{type(error).__name__}: {error}")
            return
        self.times.append(time.monotonic() - began)
        if answer.is_success:
            self.replicas.add(answer.headers["x-nodesmith-replica"])
        else:
            self.failures.append(f"{answer.status_code}: {answer.text[:200]}")

    def line(self) -> str:
        slowest = statistics.quantiles(self.times, n=100)[98] if len(self.times) > 1 else 0.0
        served = f"{len(self.times) + len(self.failures)} calls on {len(self.replicas)} replicas"
        return f"{served}, {len(self.failures)} failed, p99 {slowest * 1000:.0f} ms"


class Tour:
    def __init__(self, system: System, client: Client) -> None:
        self._system = system
        self._client = client

    async def run(self) -> None:
        await self._step("Two replicas are loaded; two callers begin.", lambda: len(self._loaded()) >= 2)
        self._client.wanted = MANY
        await self._step(f"{MANY} callers: more replicas follow.", lambda: len(self._loaded()) > 2)
        self._client.wanted = FEW
        victim = self._node_of_a_replica()
        killed = await asyncio.to_thread(self._system.kill_node, victim)
        say(f"kill -9 of all {killed} processes of {victim}.")
        await self._step("The replicas are back at two or more.", lambda: len(self._loaded()) >= 2)
        drained = self._node_of_a_replica()
        await asyncio.to_thread(self._system.run, "nodes", "drain", drained)
        await self._step(f"{drained} is drained: its replicas have moved.", lambda: drained not in self._nodes())
        await asyncio.to_thread(self._system.run, "nodes", "resume", drained)
        await asyncio.to_thread(self._system.run, "backends", "upgrade", "echo-lm", "--all", "--overlap", "--watch")
        await self._step("The backend is upgraded to version 2.", self._is_upgraded)
        await self._kill_control_plane()

    async def _kill_control_plane(self) -> None:
        pids = await asyncio.to_thread(self._system.pids)
        before = len(self._client.times)
        for name in CONTROL_PLANE:
            os.kill(pids[name], signal.SIGKILL)
        say(f"kill -9 of {', '.join(CONTROL_PLANE)}.")
        await asyncio.sleep(10)
        say(f"{len(self._client.times) - before} calls were answered in the 10 s after it.")
        await self._step("The control plane is back.", lambda: len(self._loaded()) >= 2)

    async def _step(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not await asyncio.to_thread(_tried, holds):
            if time.monotonic() > deadline:
                raise DemoFailed(f"not within {PATIENCE_S:.0f} s: {what}")
            await asyncio.sleep(0.5)
        say(f"{what} {self._client.line()}")

    def _loaded(self) -> list[dict[str, Any]]:
        return [each for each in self._system.replicas() if each["state"] == "loaded"]

    def _nodes(self) -> set[str]:
        return {each["node_name"] for each in self._system.replicas()}

    def _node_of_a_replica(self) -> str:
        return str(self._loaded()[0]["node_name"])

    def _is_upgraded(self) -> bool:
        found = self._system.read("nodes", "inventory", "agent-1")
        return '"version": "2"' in json.dumps(found)


def _tried(holds: Callable[[], bool]) -> bool:
    """While the control plane is down, the answer is not yet."""
    try:
        return holds()
    except (DemoFailed, ValueError):
        return False


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def free_base() -> int:
    """The first of ten free ports."""
    for base in range(24000, 32000, 10):
        if all(_is_free(base + offset) for offset in range(10)):
            return base
    raise DemoFailed("There are no ten free ports.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def prepare(system: System) -> str:
    """Start the system with version 1 of the backend, deploy the model, and return an API key."""
    system.run("up", "--detach", "--agents", "3", "--port-base", str(system.base))
    for number in (1, 2, 3):
        system.run("nodes", "max-replicas", f"agent-{number}", "2")
    system.run("backends", "install", "echo-lm", "--version", "1", "--all", "--watch")
    arguments = ("--arg=--token-ms", "--arg", "20")
    system.run("models", "deploy", MODEL, "--backend", "echo-lm", "--replicas", "2..4", *arguments)
    return str(system.read("tokens", "create", "demo", "--role", "client")["token"])


def conclude(client: Client) -> int:
    for failure in client.failures[:10]:
        say(failure)
    say(f"Done: {client.line()}.")
    return 1 if client.failures else 0


async def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="nodesmith-demo-"))
    system = System(home, free_base())
    try:
        say("Starting three nodes.")
        client = Client(system.gateway, await asyncio.to_thread(prepare, system))
        calling = asyncio.create_task(client.run())
        try:
            await Tour(system, client).run()
        finally:
            client.is_stopped = True
            await calling
    except DemoFailed as error:
        say(f"The demo failed: {error}")
        return 1
    else:
        return conclude(client)
    finally:
        system.run("down")
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
