"""Measures the cost of operations as ratios to the baseline of the same run: `make bench`."""

import asyncio
import itertools
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import psutil
from nats.aio.msg import Msg
from temporalio.client import Client

from benchmarks.floor import NODE, QUEUE, BareCancel, BareOperation, floor
from benchmarks.running import BenchmarkFailed, first_of_group, run
from benchmarks.stage import Stage, at_once, p50, p99, simulated, stage, timed, verdict
from nodesmith.bus.connection import Bus, connect_control, node_bus
from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import Progress
from nodesmith.domain.operation import ENDED, State
from nodesmith.runtime.temporal import connect

IN_FLIGHT = 50
OPERATIONS = 500
BACKENDS = 7
"""per node; not a divisor of the number of nodes, so that each node gets all of them in turn"""
PATIENCE_S = 300.0
"""an operation that has not started or ended by then is stuck"""
INSTANT = "instant"
SLOW = "slow"
INSTANT_PARTS = {"admission", "throughput", "memory"}
EVERY_PART = (*INSTANT_PARTS, "batch", "cancel", "progress", "room")


@asynccontextmanager
async def floors(on: Stage) -> AsyncIterator[tuple[Client, Bus]]:
    async with AsyncExitStack() as closing:
        client = await connect(on.temporal)
        issuer = CredentialIssuer(on.secret("nats-account-seed"))
        asking = await connect_control(on.nats_url, issuer, name="bench-asks")
        closing.push_async_callback(asking.close)
        credential = issuer.node_credential(NODE, lifetime=timedelta(hours=1))
        answering = node_bus(on.nats_url, NODE, lambda: credential)
        answering.start()
        closing.push_async_callback(answering.close)
        await answering.wait_up(PATIENCE_S)
        await closing.enter_async_context(floor(client, asking, answering))
        yield client, asking


async def bare(client: Client) -> None:
    await client.execute_workflow(BareOperation.run, "x", id=f"bare-{uuid.uuid4()}", task_queue=QUEUE)


NAMES = (f"b-{number}" for number in itertools.cycle(range(BACKENDS)))


async def install(on: Stage, node: str) -> str:
    """Install the next backend with force, so that no operation joins another or is skipped."""
    body = {"uri": "https://example.invalid/x.tar.gz", "name": next(NAMES), "sha256": "0" * 64, "force": True}
    answer = await on.http.post("/api/v1/operations", json={"kind": "install", "node": node, **body})
    if answer.is_error:
        raise BenchmarkFailed(f"install on {node}: {answer.status_code} {answer.text}")
    op_id: str = answer.json()["op_id"]
    return op_id


class Ends:
    """Follows the event stream, and lets callers wait for the start or the end of operations."""

    def __init__(self) -> None:
        self._ended: dict[str, asyncio.Event] = {}
        self._begun: dict[str, asyncio.Event] = {}
        self.ticks: dict[tuple[str, int], float] = {}

    async def ended(self, *op_ids: str) -> None:
        await self._wait_for_all(self._ended, op_ids, "end")

    async def begun(self, *op_ids: str) -> None:
        """Wait until the operations run on their nodes; raise if one has already ended."""
        await self._wait_for_all(self._begun, op_ids, "begin")
        if early := [op_id for op_id in op_ids if op_id in self._ended and self._ended[op_id].is_set()]:
            raise BenchmarkFailed(f"{len(early)} operations ended too early, {early[0]} among them")

    @staticmethod
    async def _wait_for_all(events: dict[str, asyncio.Event], op_ids: Sequence[str], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                for op_id in op_ids:
                    await events.setdefault(op_id, asyncio.Event()).wait()
        except TimeoutError:
            missing = [op_id for op_id in op_ids if not events.setdefault(op_id, asyncio.Event()).is_set()]
            problem = f"{len(missing)} operations did not {what} within {PATIENCE_S:.0f} s"
            raise BenchmarkFailed(f"{problem}, {missing[0]} among them") from None

    async def follow(self, on: Stage, ready: asyncio.Event) -> None:
        async with on.http.stream("GET", "/api/v1/events", timeout=None) as stream:
            async for line in stream.aiter_lines():
                ready.set()
                if line.startswith("data:"):
                    self._note(json.loads(line[5:]))
        raise BenchmarkFailed("the event stream has ended")

    def _note(self, data: dict[str, Any]) -> None:
        op_id, state = data.get("op_id"), data.get("state")
        if op_id is None:
            return  # a notice about a model
        if state is None:
            self.ticks.setdefault((op_id, data["bytes_done"]), time.perf_counter())
        elif state == State.RUNNING:
            self._begun.setdefault(op_id, asyncio.Event()).set()
        elif state in ENDED:
            self._begun.setdefault(op_id, asyncio.Event()).set()
            self._ended.setdefault(op_id, asyncio.Event()).set()


async def whole(on: Stage, ends: Ends, node: str) -> None:
    await ends.ended(await install(on, node))


async def admission(on: Stage, client: Client, nodes: Sequence[str]) -> str:
    """Compare POST -> 202 with a bare start_workflow."""
    started = [
        await timed(lambda: client.start_workflow(BareOperation.run, "x", id=f"b-{uuid.uuid4()}", task_queue=QUEUE))
        for _ in range(100)
    ]
    admitted = [await timed(partial(install, on, nodes[number % len(nodes)])) for number in range(100)]
    figures = f"(202 in {p50(admitted) * 1e3:.1f} ms, bare start {p50(started) * 1e3:.1f} ms)"
    return verdict("POST -> 202, p50, to a bare start_workflow", p50(admitted) / p50(started), bar=3, goal=2) + figures


async def throughput(on: Stage, client: Client, ends: Ends, nodes: Sequence[str]) -> str:
    """Compare complete operations on instant nodes with the bare workflow of one NATS activity, alternating."""
    ours, theirs = 0.0, 0.0
    for _ in range(2):
        theirs += await at_once([partial(bare, client)] * OPERATIONS, IN_FLIGHT)
        ours += await at_once([partial(whole, on, ends, nodes[n % len(nodes)]) for n in range(OPERATIONS)], IN_FLIGHT)
    figures = f"({2 * OPERATIONS / ours:.0f}/s, bare {2 * OPERATIONS / theirs:.0f}/s)"
    return (
        verdict("operations, 50 in flight, to the bare one", theirs / ours, bar=0.7, goal=0.9, more_is_better=True)
        + figures
    )


async def batch_of_a_hundred(on: Stage, ends: Ends, nodes: Sequence[str]) -> str:
    body = {"uri": "https://example.invalid/x.tar.gz", "name": f"b-{uuid.uuid4().hex}", "sha256": "0" * 64}
    began = time.perf_counter()
    answer = await on.http.post("/api/v1/batches", json={**body, "nodes": list(nodes), "max_parallel": 0})
    answer.raise_for_status()
    accepted = answer.json()
    await ends.ended(*accepted["operations"].values())
    while not (await on.http.get(f"/api/v1/batches/{accepted['batch_id']}")).json()["ended_at"]:
        await asyncio.sleep(0.05)
    took = time.perf_counter() - began
    return verdict("100 nodes whose install takes 1 s, all at once", took, bar=6, goal=3, unit="s")


async def cancels(on: Stage, client: Client, ends: Ends, nodes: Sequence[str]) -> list[str]:
    """Compare fifty concurrent cancels, until the node's acknowledgement, with signal -> activity -> NATS."""
    handles = [
        await client.start_workflow(BareCancel.run, "x", id=f"c-{uuid.uuid4()}", task_queue=QUEUE) for _ in range(50)
    ]

    async def bare_cancel(number: int) -> float:
        began = time.perf_counter()
        await handles[number].signal(BareCancel.cancel)
        await handles[number].result()
        return time.perf_counter() - began

    theirs = await asyncio.gather(*(bare_cancel(number) for number in range(50)))
    ops = await asyncio.gather(*(install(on, node) for node in nodes[:50]))
    await ends.begun(*ops)

    async def cancel(op_id: str) -> float:
        began = time.perf_counter()
        (await on.http.post(f"/api/v1/operations/{op_id}/cancel", json={})).raise_for_status()
        await ends.ended(op_id)
        return time.perf_counter() - began

    ours = await asyncio.gather(*(cancel(op_id) for op_id in ops))
    return [
        verdict("cancel -> shown as stopped, p99 of 50 at once", p99(ours), bar=2, goal=1, unit="s"),
        verdict("the same, to the bare signal -> activity -> NATS", p99(ours) / p99(theirs), bar=1.5, goal=1.2),
    ]


async def room(on: Stage, ends: Ends, nodes: Sequence[str]) -> list[str]:
    """Measure one more install, and its cancel, while 500 slow installs run."""
    crowd = await asyncio.gather(*(install(on, node) for node in nodes[:-1]))
    await ends.begun(*crowd)
    began = time.perf_counter()
    op_id = await install(on, nodes[-1])
    await ends.begun(op_id)
    sent = time.perf_counter() - began
    began = time.perf_counter()
    (await on.http.post(f"/api/v1/operations/{op_id}/cancel", json={})).raise_for_status()
    await ends.ended(op_id)
    stopped = time.perf_counter() - began
    return [
        verdict("one more install beside 500, until it runs on its node", sent, bar=2, goal=1, unit="s"),
        verdict("its cancel, until it is shown as stopped", stopped, bar=2, goal=1, unit="s"),
    ]


async def progress(on: Stage, ends: Ends, asking: Bus, nodes: Sequence[str]) -> str:
    """Measure how much later a progress tick reaches a client of the stream than a subscriber on the bus."""
    at_bus: dict[tuple[str, int], float] = {}

    async def tick(message: Msg) -> None:
        report = Progress.decode(message.data)
        at_bus.setdefault((report.op_id, report.bytes_done), time.perf_counter())

    await asking.subscribe(subjects.EVERY_PROGRESS, tick)
    ends.ticks.clear()
    ops = await asyncio.gather(*(install(on, node) for node in nodes))
    await ends.ended(*ops)
    late = [at - at_bus[key] for key, at in ends.ticks.items() if key in at_bus]
    what = f"progress to the stream, p99 of {len(late)} ticks of {len(nodes)} operations"
    return verdict(what, p99(late) * 1e3, bar=150, goal=100, unit="ms")


async def memory(on: Stage, ends: Ends, nodes: Sequence[str]) -> list[str]:
    """Measure the growth of memory from the 1,000th to the 5,000th operation."""
    processes = {name: psutil.Process(pid) for name, pid in on.pids().items() if name in ("api", "worker")}
    before: dict[str, int] = {}
    for done in range(1000, 6000, 1000):
        await at_once([partial(whole, on, ends, nodes[n % len(nodes)]) for n in range(1000)], IN_FLIGHT)
        if done == 1000:
            before = {name: each.memory_info().rss for name, each in processes.items()}
    return [
        verdict(
            f"memory of {name}, operation 5,000 to 1,000", each.memory_info().rss / before[name], bar=1.1, goal=1.05
        )
        for name, each in processes.items()
    ]


async def with_instant_nodes(on: Stage, client: Client, ends: Ends, parts: Collection[str]) -> None:
    async with simulated(on, 100, prefix=INSTANT, seconds=0.0) as nodes:
        if "admission" in parts:
            print(await admission(on, client, nodes), flush=True)
        if "throughput" in parts:
            print(await throughput(on, client, ends, nodes), flush=True)
        if "memory" in parts:
            print(*await memory(on, ends, nodes), sep="\n", flush=True)


async def with_slow_nodes(on: Stage, client: Client, asking: Bus, ends: Ends, parts: Collection[str]) -> None:
    if "batch" in parts:
        async with simulated(on, 100, prefix="second", seconds=1.0) as nodes:
            print(await batch_of_a_hundred(on, ends, nodes), flush=True)
    if "cancel" in parts:
        async with simulated(on, 50, prefix=SLOW, seconds=60.0) as nodes:
            print(*await cancels(on, client, ends, nodes), sep="\n", flush=True)
    if "progress" in parts:
        async with simulated(on, 200, prefix="ticking", seconds=8.0, size=100_000_000) as nodes:
            print(await progress(on, ends, asking, nodes), flush=True)
    if "room" in parts:
        async with simulated(on, 501, prefix="crowd", seconds=120.0) as nodes:
            print(*await room(on, ends, nodes), sep="\n", flush=True)


async def main(parts: Collection[str]) -> None:
    async with stage() as on, floors(on) as (client, asking):
        ends, ready = Ends(), asyncio.Event()
        with first_of_group():
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(ends.follow(on, ready))
                await ready.wait()
                if INSTANT_PARTS.intersection(parts):
                    await with_instant_nodes(on, client, ends, parts)
                await with_slow_nodes(on, client, asking, ends, parts)
                following.cancel()


if __name__ == "__main__":
    run(main(sys.argv[1:] or EVERY_PART))
