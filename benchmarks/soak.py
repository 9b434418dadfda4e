"""Soak test: two APIs, two workers, 200 nodes with failures, random cancels, a worker killed every 10 s: `make soak`.

Prints the totals; the exit code is 1 unless every operation ended exactly once and as its node reports.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

from benchmarks.running import run
from benchmarks.stage import Stage, at_once, simulated, stage
from nodesmith.bus.commands import NodeClient
from nodesmith.bus.connection import connect_control
from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.bus.reports import ReportHub
from nodesmith.contracts.nats.messages import Result
from nodesmith.domain.operation import ENDED, State
from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import Nodes
from tests.e2e.test_replicas import environment_of

NODES = 200
OPERATIONS = int(os.environ.get("SOAK_OPERATIONS", "2000"))
BACKENDS = 25
CANCELLED = 0.1
IN_FLIGHT = 60
KILL_EVERY_S = 10.0
PATIENCE_S = 600.0
NO_ANSWER = 0
NODE_RESULTS: dict[str, set[Result | None]] = {
    State.SUCCEEDED: {Result.SUCCEEDED},
    State.CANCELLED: {Result.CANCELLED, Result.FAILED, None},
    State.FAILED: {Result.FAILED},
    State.DEAD_LETTER: {Result.FAILED},
}
"""the results that a node may report for each final state; a cancelled operation may never have reached it, or only
with a failed attempt"""
ENVIRONMENT = {
    "NODESMITH_POLICY__BACK_OFF_FIRST": "1s",
    "NODESMITH_POLICY__BACK_OFF_CAP": "5s",
    "NODESMITH_POLICY__HEARTBEAT_TIMEOUT": "5s",
    "NODESMITH_POLICY__SILENCE": "3s",
    "NODESMITH_FLEET_TICK": "5s",
}


@contextlib.contextmanager
def another(on: Stage, name: str, module: str, **changes: str) -> Iterator[None]:
    """Start a second process of that kind with the environment of the first."""
    environment = {**os.environ, **environment_of(on.pids()[name]), **changes}
    process = subprocess.Popen([sys.executable, "-m", module], env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


class Soak:
    def __init__(self, on: Stage, apis: list[httpx2.AsyncClient], nodes: list[str]) -> None:
        self._on = on
        self._apis = apis
        self._nodes = nodes
        self._random = random.Random(7)
        self.accepted: list[str] = []
        self.answers: Counter[int] = Counter()
        self.kills = 0

    async def ask(self) -> None:
        """Start one operation on a random node; refusals for a busy backend are expected."""
        node, number = self._random.choice(self._nodes), self._random.randrange(BACKENDS)
        source = {"uri": f"https://example.invalid/{number}.tar.gz", "sha256": "0" * 64}
        body = {**source, "name": f"b{number}", "force": True}
        answer = await self._post("/api/v1/operations", {"kind": "install", "node": node, **body})
        if answer.status_code != httpx2.codes.ACCEPTED:
            return
        if answer.json()["joined"]:
            return
        op_id = answer.json()["op_id"]
        self.accepted.append(op_id)
        if self._random.random() < CANCELLED:
            await asyncio.sleep(self._random.random())
            await self._post(f"/api/v1/operations/{op_id}/cancel", {})

    async def _post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        while True:
            try:
                answer = await self._random.choice(self._apis).post(path, json=body)
            except httpx2.TransportError:
                self.answers[NO_ANSWER] += 1
                continue
            self.answers[answer.status_code] += 1
            if answer.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
                return answer
            await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))

    async def kill_workers(self) -> None:
        while True:
            await asyncio.sleep(KILL_EVERY_S)
            os.kill(self._on.pids()["worker"], signal.SIGKILL)
            self.kills += 1

    async def all_ended(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < len(set(self.accepted)) and time.monotonic() < deadline:
            for op_id in set(self.accepted) - found.keys():
                operation = (await self._apis[0].get(f"/api/v1/operations/{op_id}")).json()
                if operation["state"] in ENDED:
                    found[op_id] = operation
            await asyncio.sleep(1)
        return found


async def contradicted(on: Stage, ended: dict[str, dict[str, Any]]) -> list[str]:
    """Return the operations whose outcome differs from the node's; every node is queried."""
    issuer = CredentialIssuer(on.secret("nats-account-seed"))
    database = Database(on.database_url)
    bus = await connect_control(on.nats_url, issuer, name="soak", keys=Nodes(database))
    nodes = NodeClient(bus, ReportHub(bus))

    async def difference(op_id: str, operation: dict[str, Any]) -> str:
        reply = await nodes.ask(operation["node_id"], op_id, within=10)
        result = reply.outcome.result if reply.outcome else None
        state, reason = operation["state"], operation["reason"]
        return "" if result in NODE_RESULTS[state] else f"{op_id}: {state} ({reason}), but its node reports {result}"

    try:
        differences = [await difference(op_id, operation) for op_id, operation in ended.items()]
        return [each for each in differences if each]
    finally:
        await bus.close()
        await database.close()


def judge(soak: Soak, ended: dict[str, dict[str, Any]], contradictions: list[str]) -> int:
    states = Counter(operation["state"] for operation in ended.values())
    ends = [
        [event["state"] for event in operation["timeline"] if event["state"] in ENDED] for operation in ended.values()
    ]
    twice = sum(len(each) != 1 for each in ends)
    stuck = len(set(soak.accepted)) - len(ended)
    print(f"answers {dict(soak.answers)}; operations {len(set(soak.accepted))}; workers killed {soak.kills}")
    print(
        f"ended {dict(states)}; stuck {stuck}, ended twice {twice}, otherwise than the node says {len(contradictions)}"
    )
    print(*contradictions[:5], sep="\n")
    return 1 if stuck or twice or contradictions else 0


@contextlib.asynccontextmanager
async def two_of_each(on: Stage) -> AsyncIterator[list[httpx2.AsyncClient]]:
    port = on.ready["ports"]["api"] + 9
    with (
        another(on, "api", "nodesmith.api.main", NODESMITH_API_PORT=str(port)),
        another(on, "worker", "nodesmith.workers.main"),
    ):
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=on.http.headers, timeout=60, trust_env=False
        ) as second:
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    if (await second.get("/readyz")).status_code == httpx2.codes.OK:
                        break
                await asyncio.sleep(0.2)
            yield [on.http, second]


async def main() -> int:
    os.environ.update(ENVIRONMENT)
    async with (
        stage() as on,
        two_of_each(on) as apis,
        simulated(on, NODES, prefix="soak", seconds=0.5, fail_rate=0.1) as nodes,
    ):
        soak = Soak(on, apis, nodes)
        killing = asyncio.create_task(soak.kill_workers())
        took = 0.0
        while (missing := OPERATIONS - len(soak.accepted)) > 0:
            took += await at_once([soak.ask] * missing, IN_FLIGHT)
        print(f"asked in {took:.0f} s", flush=True)
        ended = await soak.all_ended()
        killing.cancel()
        return judge(soak, ended, await contradicted(on, ended))


if __name__ == "__main__":
    run(main())
