"""A temporary stack with simulated nodes for one benchmark."""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2

from benchmarks.running import BenchmarkFailed, first_of_group
from nodesmith.runtime.settings import ControlSettings
from nodesmith.stack.home import Home
from nodesmith.stack.servers.postgres import PostgresServer
from nodesmith.stack.tcp_ports import RANGE, is_free
from tests.temporal_client import temporal_settings

NODESMITH = str(Path(sysconfig.get_path("scripts")) / "nodesmith")


@dataclass
class Stage:
    """A running control plane and an HTTP client of it."""

    home: Path
    ready: dict[str, Any]
    http: httpx2.AsyncClient

    @property
    def temporal(self) -> ControlSettings:
        """Connection settings of its Temporal server."""
        connection = Home(self.home).connection()
        if connection is None:
            raise BenchmarkFailed("The stack wrote no connection.json.")
        return temporal_settings(connection)

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{self.ready['ports']['nats']}"

    @property
    def database_url(self) -> str:
        folder, port = self.home / "postgres", self.ready["ports"]["postgres"]
        return PostgresServer(folder, port, self.secret("postgres-password"), self.home / "postgres.log").url()

    def secret(self, name: str) -> str:
        return (self.home / "secrets" / name).read_text().strip()

    def pids(self) -> dict[str, int]:
        status = subprocess.run(
            [NODESMITH, "status", "--json", "--home", str(self.home)], capture_output=True, text=True, check=True
        )
        return {each["name"]: each["pid"] for each in json.loads(status.stdout)["processes"]}


def free_base() -> int:
    """Return the first of ten consecutive free ports, because other benchmarks or tests may run at the same time."""
    bases = range(27000, 30000, RANGE)
    return next(base for base in bases if all(is_free(port) for port in range(base, base + RANGE)))


@contextlib.asynccontextmanager
async def stage(agents: int = 0, environment: Mapping[str, str] = MappingProxyType({})) -> AsyncIterator[Stage]:
    """Run a stack with `environment` added to this process's environment."""
    with tempfile.TemporaryDirectory(prefix="nodesmith-bench-") as folder:
        home = Path(folder) / "home"
        command = [NODESMITH, "up", "--home", str(home), "--agents", str(agents), "--port-base", str(free_base())]
        try:
            ready = await _start_stack([*command, "--detach", "--json"], environment)
            token = Path(ready["token_file"]).read_text().strip()
            limits = httpx2.Limits(max_connections=100, max_keepalive_connections=100)
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(
                base_url=ready["url"], headers=headers, timeout=60, limits=limits, trust_env=False
            ) as http:
                yield Stage(home, ready, http)
        finally:
            subprocess.run([NODESMITH, "down", "--home", str(home)], check=False, capture_output=True)


async def _start_stack(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    starting = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment}
    )
    try:
        output, errors = await starting.communicate()
    except asyncio.CancelledError:
        starting.send_signal(signal.SIGINT)  # it stops the processes that it has started
        await starting.wait()
        raise
    if starting.returncode:
        raise BenchmarkFailed(errors.decode())
    ready: dict[str, Any] = json.loads(output)
    return ready


@contextlib.asynccontextmanager
async def simulated(
    stage: Stage, nodes: int, *, prefix: str, seconds: float, size: int = 1000, fail_rate: float = 0.0
) -> AsyncIterator[list[str]]:
    """Simulate nodes in a separate process, wait until all are healthy, and yield their names."""
    command = [NODESMITH, "simulate", "--home", str(stage.home), "--nodes", str(nodes), "--name-prefix", prefix]
    options = ["--install-seconds", str(seconds), "--size", str(size), "--fail-rate", str(fail_rate)]
    simulator = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    try:
        names = [f"{prefix}-{number}" for number in range(1, nodes + 1)]
        async with asyncio.timeout(180):
            while not await _all_healthy(stage, set(names)):
                if simulator.poll() is not None:
                    raise BenchmarkFailed(f"the simulated nodes {prefix}-* ended with exit code {simulator.returncode}")
                await asyncio.sleep(0.5)
        yield names
    finally:
        simulator.terminate()
        simulator.wait(60)


async def _all_healthy(stage: Stage, names: set[str]) -> bool:
    nodes = (await stage.http.get("/api/nodes")).json()
    return names <= {node["name"] for node in nodes if node["status"] == "healthy"}


async def timed(action: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


async def at_once(actions: Sequence[Callable[[], Awaitable[Any]]], in_flight: int) -> float:
    """Run all actions, at most `in_flight` at a time, and return the seconds; the first failure cancels the rest."""
    slots = asyncio.Semaphore(in_flight)

    async def one(action: Callable[[], Awaitable[Any]]) -> None:
        async with slots:
            await action()

    began = time.perf_counter()
    with first_of_group():
        async with asyncio.TaskGroup() as tasks:
            for action in actions:
                tasks.create_task(one(action))
    return time.perf_counter() - began


def p50(values: Sequence[float]) -> float:
    return statistics.median(values)


def p99(values: Sequence[float]) -> float:
    return sorted(values)[max(0, round(len(values) * 0.99) - 1)]


def verdict(what: str, value: float, *, bar: float, goal: float, more_is_better: bool = False, unit: str = "x") -> str:
    """Format one line: the value, the bar, the goal, and which of them it meets."""
    holds = {limit: value >= limit if more_is_better else value <= limit for limit in (bar, goal)}
    result = "goal" if holds[goal] else "bar" if holds[bar] else "MISSED"
    sign = ">=" if more_is_better else "<="
    return f"{what:<58} {value:7.2f} {unit:<3} (bar {sign} {bar:g}, goal {sign} {goal:g})  {result}"
