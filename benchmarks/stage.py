"""A stack of one's own, with simulated nodes, for a benchmark: started, used, and gone."""

import asyncio
import contextlib
import json
import signal
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.running import BenchmarkFailed, first_of_group
from stack.ports import RANGE, is_free

NODESMITH = str(Path(sysconfig.get_path("scripts")) / "nodesmith")


@dataclass
class Stage:
    """A running control plane, and a client of it."""

    home: Path
    ready: dict[str, Any]
    http: httpx2.AsyncClient

    @property
    def temporal_address(self) -> str:
        return f"127.0.0.1:{self.ready['ports']['temporal']}"

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{self.ready['ports']['nats']}"

    def secret(self, name: str) -> str:
        return (self.home / "secrets" / name).read_text().strip()

    def pids(self) -> dict[str, int]:
        told = subprocess.run(
            [NODESMITH, "status", "--json", "--home", str(self.home)], capture_output=True, text=True, check=True
        )
        return {each["name"]: each["pid"] for each in json.loads(told.stdout)["processes"]}


def free_base() -> int:
    """Ten free ports in a row: another benchmark, or a test, may run beside this one."""
    bases = range(27000, 30000, RANGE)
    return next(base for base in bases if all(is_free(port) for port in range(base, base + RANGE)))


@contextlib.asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="nodesmith-bench-") as folder:
        home = Path(folder) / "home"
        command = [NODESMITH, "up", "--home", str(home), "--agents", "0", "--port-base", str(free_base())]
        try:
            ready = await _started([*command, "--detach", "--json"])
            token = Path(ready["token_file"]).read_text().strip()
            limits = httpx2.Limits(max_connections=100, max_keepalive_connections=100)
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(
                base_url=ready["url"], headers=headers, timeout=60, limits=limits, trust_env=False
            ) as http:
                yield Stage(home, ready, http)
        finally:
            subprocess.run([NODESMITH, "down", "--home", str(home)], check=False, capture_output=True)


async def _started(command: Sequence[str]) -> dict[str, Any]:
    starting = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        said, complaint = await starting.communicate()
    except asyncio.CancelledError:
        starting.send_signal(signal.SIGINT)  # it stops what it has started so far
        await starting.wait()
        raise
    if starting.returncode:
        raise BenchmarkFailed(complaint.decode())
    ready: dict[str, Any] = json.loads(said)
    return ready


@contextlib.asynccontextmanager
async def simulated(
    stage: Stage, nodes: int, *, prefix: str, seconds: float, size: int = 1000, fail_rate: float = 0.0
) -> AsyncIterator[list[str]]:
    """That many nodes in a process of their own, all heard; yields their names."""
    command = [NODESMITH, "simulate", "--home", str(stage.home), "--nodes", str(nodes), "--name-prefix", prefix]
    how = ["--install-seconds", str(seconds), "--size", str(size), "--fail-rate", str(fail_rate)]
    player = subprocess.Popen([*command, *how], stdout=subprocess.DEVNULL)
    try:
        names = [f"{prefix}-{number}" for number in range(1, nodes + 1)]
        async with asyncio.timeout(180):
            while not await _all_healthy(stage, set(names)):
                if player.poll() is not None:
                    raise BenchmarkFailed(f"the simulated nodes {prefix}-* ended with exit code {player.returncode}")
                await asyncio.sleep(0.5)
        yield names
    finally:
        player.terminate()
        player.wait(60)


async def _all_healthy(stage: Stage, names: set[str]) -> bool:
    nodes = (await stage.http.get("/api/nodes")).json()
    return names <= {node["name"] for node in nodes if node["status"] == "healthy"}


async def timed(action: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


async def at_once(actions: Sequence[Callable[[], Awaitable[Any]]], in_flight: int) -> float:
    """Run all of them, so many at a time; returns the seconds it took. The first that fails ends all."""
    gate = asyncio.Semaphore(in_flight)

    async def one(action: Callable[[], Awaitable[Any]]) -> None:
        async with gate:
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
    """One line: the figure, the bar, the goal, and whether they hold."""
    holds = {limit: value >= limit if more_is_better else value <= limit for limit in (bar, goal)}
    how = "goal" if holds[goal] else "bar" if holds[bar] else "MISSED"
    sign = ">=" if more_is_better else "<="
    return f"{what:<58} {value:7.2f} {unit:<3} (bar {sign} {bar:g}, goal {sign} {goal:g})  {how}"
