"""Kills random processes with SIGKILL during real installs on real agents: `make kills`.

Three agents download, unpack and swap real archives while the API, the worker, NATS, PostgreSQL, Temporal and the
agents are killed at random moments. Then every outcome is compared in four places: the row with its events, the run,
the node's journal and its disk. The exit code is 1 unless all four agree. `--seed` repeats the random choices.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from benchmarks.running import run
from benchmarks.stage import Stage, stage
from nodesmith.domain.operation import ENDED, State
from nodesmith.runtime.temporal import TemporalRuns, connect
from tests.e2e.slow_source import Package, SlowSource, package, slow_source

NODES = ("agent-1", "agent-2", "agent-3")
BACKENDS = ("red", "green", "blue")
VERSIONS = ("1", "2", "3")
MB = 1024 * 1024
PATIENCE_S = 300.0
KINDS = ("install", "install", "upgrade", "upgrade", "rollback", "remove")
ENVIRONMENT = {
    "NODESMITH_SOURCE_NETWORKS": "127.0.0.0/8",
    "NODESMITH_POLICY__BACK_OFF_FIRST": "1s",
    "NODESMITH_POLICY__BACK_OFF_CAP": "5s",
    "NODESMITH_POLICY__HEARTBEAT_TIMEOUT": "5s",
    "NODESMITH_POLICY__SILENCE": "3s",
    "NODESMITH_FLEET_TICK": "5s",
}
JOURNAL_RESULTS: dict[str, set[str]] = {
    State.SUCCEEDED: {"succeeded"},
    State.CANCELLED: {"cancelled", ""},
    State.FAILED: {"failed", ""},
    State.DEAD_LETTER: {"failed"},
}
"""the results that the node's journal may have for each final state; empty: the order never arrived"""


@dataclass
class Tally:
    """Counts of accepted operations, HTTP answers and kills."""

    accepted: set[str] = field(default_factory=set)
    answers: Counter[int] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)


class Load:
    """Simulates one user per backend and node, who starts operations, cancels some, and waits for their end."""

    def __init__(self, on: Stage, source: SlowSource, packages: Mapping[str, Package], seed: int) -> None:
        self._on = on
        self._source = source
        self._packages = packages
        self._seed = seed
        self.tally = Tally()

    async def use(self, node: str, backend: str, until: float) -> None:
        chosen = random.Random(f"{self._seed} {node} {backend}")
        while time.monotonic() < until:
            op_id = await self._start_operation(node, backend, chosen)
            if op_id is None:
                await asyncio.sleep(0.2)
                continue
            self.tally.accepted.add(op_id)
            if chosen.random() < 0.2:
                await asyncio.sleep(chosen.uniform(0, 2))
                await self._post(f"/api/v1/operations/{op_id}/cancel", {})
            await self._wait_for_end(op_id, until)

    async def _start_operation(self, node: str, backend: str, chosen: random.Random) -> str | None:
        kind, version = chosen.choice(KINDS), chosen.choice(VERSIONS)
        name = f"{backend}-{version}"
        artifact = {
            "uri": f"{self._source.url}/{name}.tar.gz",
            "sha256": self._packages[name].sha256,
            "version": version,
            "name": backend,
            "force": chosen.random() < 0.3,
        }
        body = artifact if kind in ("install", "upgrade") else {"backend": backend}
        answer = await self._post("/api/v1/operations", {"kind": kind, "node": node, **body})
        accepted = answer.status_code == httpx2.codes.ACCEPTED
        return str(answer.json()["op_id"]) if accepted else None

    async def _post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """Retry with the same idempotency key until the API answers, as a client script would."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        while True:
            try:
                answer = await self._on.http.post(path, json=body, headers=headers)
            except httpx2.TransportError:
                await asyncio.sleep(0.1)
                continue
            self.tally.answers[answer.status_code] += 1
            if answer.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
                return answer
            await asyncio.sleep(0.3)

    async def _wait_for_end(self, op_id: str, until: float) -> None:
        while time.monotonic() < until:
            if (await read(self._on, op_id)).get("state") in ENDED:
                return
            await asyncio.sleep(0.3)


async def read(on: Stage, op_id: str) -> dict[str, Any]:
    """Return the operation; empty while a server restarts."""
    try:
        answer = await on.http.get(f"/api/v1/operations/{op_id}")
    except httpx2.TransportError:
        return {}
    return dict(answer.json()) if answer.is_success else {}


async def kill_at_random(on: Stage, tally: Tally, chosen: random.Random, until: float) -> None:
    """Kill one process at a time, sometimes two, rarely all of them."""
    while time.monotonic() < until:
        await asyncio.sleep(chosen.uniform(1.0, 6.0))
        pids = await asyncio.to_thread(on.pids)
        names = sorted(name for name, pid in pids.items() if pid)
        size = chosen.choices((1, 2, len(names)), weights=(12, 4, 1))[0]
        for name in chosen.sample(names, min(size, len(names))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[name], signal.SIGKILL)
                tally.kills[name] += 1


async def all_ended(on: Stage, op_ids: set[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(op_ids) and time.monotonic() < deadline:
        for op_id in op_ids - found.keys():
            operation = await read(on, op_id)
            if operation.get("state") in ENDED:
                found[op_id] = operation
        await asyncio.sleep(0.5)
    return found


# the four places that record an outcome --------------------------------------------------------------------------


def rows_with_two_ends(ended: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    for op_id, operation in ended.items():
        ends = [event["state"] for event in operation["timeline"] if event["state"] in ENDED]
        if ends != [operation["state"]]:
            yield f"row {op_id} is {operation['state']}, its events say {ends}"


async def runs_that_differ(on: Stage, ended: Mapping[str, dict[str, Any]]) -> AsyncIterator[str]:
    runs = TemporalRuns(await connect(on.temporal))
    still_open = {each.op_id for each in await runs.open_runs()}
    for op_id, operation in ended.items():
        if op_id in still_open:
            yield f"run of {op_id} is open, its row is {operation['state']}"
            continue
        result = await runs.result(operation["workflow_id"], operation["run_id"])
        if result is None or result.state != operation["state"]:
            yield f"run of {op_id} ended {result.state if result else 'without a result'}, its row {operation['state']}"


def journals_that_differ(on: Stage, ended: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    for op_id, operation in ended.items():
        standing = journal_of(on, operation["node_name"], op_id)
        if standing not in JOURNAL_RESULTS.get(operation["state"], set()):
            yield f"{op_id} is {operation['state']}, the journal of {operation['node_name']} says '{standing}'"


def journal_of(on: Stage, node: str, op_id: str) -> str:
    path = on.home / "agents" / node / "journal" / f"{op_id}.json"
    if not path.exists():
        return ""
    entry = json.loads(path.read_text())
    outcome = entry.get("outcome") or {}
    return str(outcome.get("result") if entry["standing"] == "ended" else entry["standing"])


def disks_that_differ(on: Stage, ended: Mapping[str, dict[str, Any]], packages: Mapping[str, Package]) -> Iterator[str]:
    """Compare the version that the last successful operation reported with the bytes on the disk."""
    noises = {each.noise_sha256: version_of(name) for name, each in packages.items()}
    for node in NODES:
        for backend in BACKENDS:
            wanted = last_version(ended, node, backend)
            noise = on.home / "agents" / node / "backends" / backend / "current" / "noise"
            found = noises.get(hashlib.sha256(noise.read_bytes()).hexdigest(), "?") if noise.exists() else ""
            if found != wanted:
                yield f"{backend} on {node}: the operations left version '{wanted}', the disk has '{found}'"


def version_of(name: str) -> str:
    return name.rpartition("-")[2]


def last_version(ended: Mapping[str, dict[str, Any]], node: str, backend: str) -> str:
    done = [
        each
        for each in ended.values()
        if (each["node_name"], each["backend"], each["state"]) == (node, backend, State.SUCCEEDED)
    ]
    last = max(done, key=lambda each: each["ended_at"], default=None)
    after = (last or {}).get("after") or {}
    return str(after.get("version", ""))


async def inventories_that_differ(on: Stage, ended: Mapping[str, dict[str, Any]]) -> AsyncIterator[str]:
    for node in NODES:
        answer = await on.http.post(f"/api/v1/nodes/{node}/inventory/refresh", json={})
        answer.raise_for_status()
        listed = (await on.http.get(f"/api/v1/nodes/{node}/inventory")).json()
        versions = {each["family"]: each["version"] for each in listed["backends"]}
        for backend in BACKENDS:
            wanted = last_version(ended, node, backend)
            if versions.get(backend, "") != wanted:
                yield f"inventory of {node} has {backend} {versions.get(backend)}, the operations left {wanted}"


async def judge(on: Stage, load: Load, packages: Mapping[str, Package]) -> int:
    tally = load.tally
    ended = await all_ended(on, tally.accepted)
    faults = [
        *(f"{op_id} has not ended" for op_id in tally.accepted - ended.keys()),
        *rows_with_two_ends(ended),
        *[each async for each in runs_that_differ(on, ended)],
        *journals_that_differ(on, ended),
        *disks_that_differ(on, ended, packages),
        *[each async for each in inventories_that_differ(on, ended)],
    ]
    states = Counter(f"{operation['state']} {operation['reason'] or ''}".strip() for operation in ended.values())
    print(f"killed {sum(tally.kills.values())}: {dict(tally.kills)}; answers {dict(tally.answers)}")
    print(f"operations {len(tally.accepted)}: {dict(states)}")
    print(f"stuck, doubled, or different in row, run, journal, disk or inventory: {len(faults)}")
    print(*faults[:20], sep="\n")
    return 1 if faults else 0


async def main(seed: int, minutes: float) -> int:
    os.environ.update(ENVIRONMENT)
    names = [f"{backend}-{version}" for backend in BACKENDS for version in VERSIONS]
    packages = {name: package(MB) for name in names}
    async with slow_source() as source, stage(agents=len(NODES)) as on:
        source.files.update({f"{name}.tar.gz": each.content for name, each in packages.items()})
        source.bytes_per_second = MB
        load, until = Load(on, source, packages, seed), time.monotonic() + minutes * 60
        print(f"seed {seed}, {minutes:g} minutes", flush=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill_at_random(on, load.tally, random.Random(seed), until))
            for node in NODES:
                for backend in BACKENDS:
                    tasks.create_task(load.use(node, backend, until))
        return await judge(on, load, packages)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_kills", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args(sys.argv[1:])
    run(main(arguments.seed, arguments.minutes))
