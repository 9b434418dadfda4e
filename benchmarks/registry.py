"""Measures a registry of 5,000 nodes as ratios to the bare queries of the same run: `make bench-registry`."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

import psutil
import psycopg
from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from benchmarks.running import run
from benchmarks.stage import Stage, p50, stage, timed, verdict
from nodesmith.bus.connection import Bus, connect_control
from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.presence import Heartbeat, Resources
from nodesmith.domain.selector import parse
from nodesmith.store.nodes.node_list import NodeQuery, page_statement

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Driver = psycopg.AsyncConnection[Any]

NODES = 5_000
EVERY_S = 10.0
WINDOW_S = 30.0
ROUNDS = 200
PAGE = 100
SELECTOR = "zone=z7,rack!=r1,gpu.vram in (24GB,48GB)"

FILL = f"""
    INSERT INTO nodes (id, name, node_type, protocol, address, http_address, max_replicas_per_model, vram_budget,
        machine_id, boot_id, agent_version, resources, approved_at, created_at, updated_at)
    SELECT gen_random_uuid()::text, 'bench-' || lpad(number::text, 5, '0'), 'backend', 2, '', '', 1, '', 'm', 'b', 'x',
        '{{"total_ram": 64000000000, "total_disk": 1000000000000, "gpu_vendor": "nvidia", "total_vram": 25757220864}}',
        now(), now(), now() FROM generate_series(1, {NODES}) AS number;
    INSERT INTO node_labels (node_id, key, by_node)
    SELECT id, key, value
    FROM (SELECT *, right(name, 5)::int AS number FROM nodes) AS nodes, LATERAL (VALUES ('zone', 'z' || number % 50),
        ('rack', 'r' || number % 40), ('gpu.vram', (ARRAY['8GB', '24GB', '48GB'])[number % 3 + 1]), ('node.name', name),
        ('node.replica-slots', '1'), ('gpu.vendor', 'nvidia')) AS label (key, value);
    INSERT INTO inventory_scans (node_id, asked_at, boot_id) SELECT id, now(), 'b' FROM nodes;
    ANALYZE;
"""
"""nodes with a completed inventory scan: the steady state"""


async def main() -> None:
    async with stage() as on, _database(on) as database, _bus(on) as bus:
        await database.execute(FILL)
        ids = [node_id for (node_id,) in await (await database.execute("SELECT id FROM nodes")).fetchall()]
        print(f"{NODES} nodes, {PAGE} a page, {ROUNDS} rounds, median\n")
        await _pages(on, database)
        await _heartbeats(on, bus, ids)


async def _pages(on: Stage, database: Driver) -> None:
    """Compare GET with the bare query: the same rows with the driver alone, the lowest possible cost of an answer."""
    for what, query in (
        ("first page of 5,000 nodes", NodeQuery(limit=PAGE)),
        ("selector over 5,000 nodes", NodeQuery(limit=PAGE, selector=parse(SELECTOR))),
    ):
        path = f"/api/v1/nodes?{urlencode({'limit': PAGE, 'selector': str(query.selector)})}"
        async with _link(on) as link:
            floor, ours = await _side_by_side(
                partial(_fetch, database, *_bare(query)), partial(_get, link, path, on.secret("admin-token"))
            )
        line = verdict(f"{what}: GET over HTTP / the bare query", ours / floor, bar=3, goal=1.5)
        print(f"{line}  {ours * 1e3:.1f} / {floor * 1e3:.1f} ms")


@asynccontextmanager
async def _link(on: Stage) -> AsyncIterator[Link]:
    url = urlsplit(on.ready["url"])
    link = await asyncio.open_connection(url.hostname, url.port, limit=2**24)
    yield link
    link[1].close()


async def _get(link: Link, path: str, token: str) -> bytes:
    """Send a request over a raw socket, so that the client adds no cost to the measurement."""
    reader, writer = link
    writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(head.decode())
    return await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))


def _bare(query: NodeQuery) -> tuple[str, Mapping[str, Any]]:
    """Return the list's SQL statement as text with its parameters."""
    statement = page_statement(query).params(now=datetime.now(UTC), limit=PAGE + 1)
    dialect: Dialect = PGDialect_psycopg()  # type: ignore[no-untyped-call]
    ready = statement.compile(dialect=dialect).construct_expanded_state()
    return ready.statement, ready.parameters


async def _side_by_side(floor: Callable[[], Awaitable[Any]], ours: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Alternate both, so that other load on the machine affects them equally."""
    for warm in (floor, ours) * 10:
        await warm()
    times = [(await timed(floor), await timed(ours)) for _ in range(ROUNDS)]
    return p50([each[0] for each in times]), p50([each[1] for each in times])


async def _fetch(database: Driver, query: str, values: Mapping[str, Any]) -> None:
    await (await database.execute(query, values)).fetchall()


async def _heartbeats(on: Stage, bus: Bus, ids: list[str]) -> None:
    idle = await _cores(on)
    beating = asyncio.create_task(_beat(bus, ids))
    await asyncio.sleep(EVERY_S)
    busy = await _cores(on)
    beating.cancel()
    cost = {name: busy[name] - idle[name] for name in busy}
    details = ", ".join(f"{name} {value:.3f}" for name, value in cost.items())
    print(
        verdict("5,000 nodes every 10 s, cores of the control plane", sum(cost.values()), bar=0.25, goal=0.15, unit="")
    )
    print(f"  {details}; idle {sum(idle.values()):.3f}")


async def _beat(bus: Bus, ids: list[str]) -> None:
    """Send the heartbeat of every node once in ten seconds, evenly spread."""
    step, began = EVERY_S / len(ids), time.monotonic()
    resources = Resources(total_ram=64 * 10**9, available_ram=48 * 10**9, total_disk=10**12, available_disk=5 * 10**11)
    beats = [
        (subjects.heartbeat(each), Heartbeat(node_id=each, boot_id="b", resources=resources).encode()) for each in ids
    ]
    number = 0
    while True:
        while time.monotonic() - began > number * step:
            subject, payload = beats[number % len(beats)]
            await bus.publish(subject, payload)
            number += 1
        await asyncio.sleep(0.02)


async def _cores(on: Stage) -> dict[str, float]:
    """Return the CPU usage of each process that handles a heartbeat, children included."""
    pids = {name: pid for name, pid in on.pids().items() if name in ("worker", "postgres", "nats")}
    before, began = {name: _seconds(pid) for name, pid in pids.items()}, time.monotonic()
    await asyncio.sleep(WINDOW_S)
    took = time.monotonic() - began
    return {name: (_seconds(pid) - before[name]) / took for name, pid in pids.items()}


def _seconds(pid: int) -> float:
    family = [process := psutil.Process(pid), *process.children(recursive=True)]
    times = [each.cpu_times() for each in family]
    return sum(each.user + each.system for each in times)


@asynccontextmanager
async def _database(on: Stage) -> AsyncIterator[Driver]:
    async with await psycopg.AsyncConnection.connect(on.database_url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def _bus(on: Stage) -> AsyncIterator[Bus]:
    bus = await connect_control(on.nats_url, CredentialIssuer(on.secret("nats-account-seed")), name="bench")
    try:
        yield bus
    finally:
        await bus.close()


if __name__ == "__main__":
    run(main())
