"""A running stack, as a client of its API sees it."""

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from nodesmith.domain.operation import ENDED, State
from tests.e2e.slow_source import Package, SlowSource
from tests.stack.commands import Machine

PATIENCE_S = 90.0


class Fleet:
    """Sends HTTP requests, inspects the agents' disks, and kills processes by name."""

    def __init__(self, machine: Machine) -> None:
        connection = machine.home.connection()
        assert connection is not None
        self.machine = machine
        self.url = connection.url
        self.http = httpx2.AsyncClient(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {connection.token()}"},
            timeout=60,
            trust_env=False,
        )

    async def install(self, node: str, **body: object) -> httpx2.Response:
        """Ask for one operation on one node: an install, unless the body names another kind."""
        return await self.http.post("/api/v1/operations", json={"kind": "install", "node": node, **body})

    async def accepted(self, node: str, **body: object) -> str:
        """Start one operation and return its id."""
        answer = await self.install(node, **body)
        assert answer.status_code == 202, answer.text
        op_id: str = answer.json()["op_id"]
        return op_id

    async def cancel(self, op_id: str, **body: object) -> httpx2.Response:
        return await self.http.post(f"/api/v1/operations/{op_id}/cancel", json=body)

    async def operation(self, op_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/api/v1/operations/{op_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def until(self, op_id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Poll until the operation satisfies the condition; retry while a server restarts."""
        found: dict[str, Any] = {}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    found = await self.operation(op_id)
                except (httpx2.TransportError, AssertionError):
                    found = {}
                if found and condition(found):
                    return found
                await asyncio.sleep(0.1)

    async def ended(self, op_id: str) -> dict[str, Any]:
        return await self.until(op_id, lambda operation: operation["state"] in ENDED)

    async def in_state(self, op_id: str, *states: State) -> dict[str, Any]:
        return await self.until(op_id, lambda operation: operation["state"] in states)

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL; the supervisor restarts it."""
        os.kill(self.machine.pids()[name], signal.SIGKILL)

    async def restarted(self, name: str, pid: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.machine.pids().get(name, pid) == pid:  # noqa: ASYNC110 - another process restarts it
                await asyncio.sleep(0.05)

    def live(self, node: str, family: str) -> Path:
        """Return the folder from which the node serves that backend."""
        return self.machine.folder / "agents" / node / "backends" / family / "current"

    def standing(self, node: str, op_id: str) -> str:
        """Return the operation's standing in the node's journal."""
        journal = self.machine.folder / "agents" / node / "journal"
        standing: str = json.loads((journal / f"{op_id}.json").read_text())["standing"]
        return standing

    def noise_on_disk(self, node: str, family: str) -> str:
        return hashlib.sha256((self.live(node, family) / "noise").read_bytes()).hexdigest()


def offer(source: SlowSource, name: str, package: Package) -> dict[str, object]:
    """Add the package to the source; return the body of an install request for it."""
    source.files[f"{name}.tar.gz"] = package.content
    return {"uri": f"{source.url}/{name}.tar.gz", "name": name, "sha256": package.sha256}
