"""Measures the model scheduler on 1,000 nodes, 5,000 replicas and 1,000 deployments, and the counters of 8 gateways."""

import asyncio
import gc
import tempfile
import time
from pathlib import Path
from statistics import median

from sqlalchemy import text

from benchmarks.running import run
from benchmarks.stage import verdict
from nodesmith.domain.scaling import plan_tick
from nodesmith.store.database import Database
from nodesmith.store.models.holds import Holds
from nodesmith.store.models.snapshots import FleetSnapshots
from tests import servers

ROUNDS = 10
GATEWAYS = 8
CHANGED = 20
SYNCS = 40

FILL = """
    INSERT INTO heartbeat_sinks VALUES (2, now(), now() + interval '1 hour');
    INSERT INTO nodes (id, name, node_type, protocol, address, http_address, max_replicas_per_model, vram_budget,
        machine_id, boot_id, agent_version, resources, resources_at, approved_at, last_heartbeat, created_at,
        updated_at)
    SELECT 'n' || i, 'n' || i, 'backend', 2, '', '', 4, '', '', '', '',
        jsonb_build_object('total_vram', 80 * 1073741824::bigint, 'available_vram', 80 * 1073741824::bigint), now(),
        now(), now() + interval '1 hour', now(), now() FROM generate_series(1, 1000) AS i;
    INSERT INTO node_labels (node_id, key, by_node)
    SELECT 'n' || i, 'zone', (i % 10)::text FROM generate_series(1, 1000) AS i;
    INSERT INTO models (name, revision, load)
    SELECT 'm' || i, 1, jsonb_build_object('backend', 'b', 'memory', 1073741824) FROM generate_series(1, 1000) AS i;
    INSERT INTO model_rules (model_name, selector, min_replicas, max_replicas, spread_all, policy,
        balance_abs_threshold, balance_rel_threshold, min_prefix_match)
    SELECT 'm' || i, '', 5, 8, false, '', 0, 0, 0 FROM generate_series(1, 1000) AS i;
    INSERT INTO replicas (id, node_id, model_name, replica_index, revision, state, op_id, reserved, loaded_at,
        last_used)
    SELECT 'r' || i || '-' || j, 'n' || ((i * 7 + j * 131) % 1000 + 1), 'm' || i, 0, 1, 'loaded', 'o' || i || '-' || j,
        1073741824, now() - interval '1 hour', now() FROM generate_series(1, 1000) AS i, generate_series(0, 4) AS j;
    ANALYZE
"""
"""1,000 healthy nodes, and 1,000 models with five replicas each: the steady state"""


async def main() -> None:
    gc.freeze()  # as the worker does
    with tempfile.TemporaryDirectory() as folder:
        async with servers.postgres(Path(folder)) as server:
            database = Database(await server.create_database())
            await database.migrate()
            async with database.session() as session:
                for statement in FILL.split(";"):
                    await session.execute(text(statement.replace(":", "\\:")))
            await _ticks(database)
            await _syncs(database)
            await database.close()


async def _ticks(database: Database) -> None:
    """CPU of this process for one tick that finds nothing to do: read the snapshot, make the plan."""
    snapshots, reads, plans = FleetSnapshots(database), [], []
    for _ in range(ROUNDS):
        began = time.process_time()
        fleet = await snapshots.read()
        read = time.process_time()
        plan_tick(fleet)
        reads.append(read - began)
        plans.append(time.process_time() - read)
    cpu_ms = 1000 * (median(reads) + median(plans))
    line = verdict("one tick over 1,000 nodes, 5,000 replicas, 1,000 models: ms CPU", cpu_ms, bar=100, goal=50)
    print(f"{line}  snapshot {1000 * median(reads):.0f}, plan {1000 * median(plans):.0f}")


async def _syncs(database: Database) -> None:
    """How often 8 gateways can write the counts of 20 replicas each."""
    holds = Holds(database)
    ids = [f"r{number}-0" for number in range(1, CHANGED + 1)]

    async def gateway(number: int) -> None:
        for turn in range(SYNCS):
            await holds.sync(f"g{number}", dict.fromkeys(ids, (turn + number) % 5))

    began = time.monotonic()
    await asyncio.gather(*(gateway(number) for number in range(GATEWAYS)))
    rate = GATEWAYS * SYNCS / (time.monotonic() - began)
    print(verdict("seconds for 100 synchronisations of 8 gateways", 100 / rate, bar=1, goal=0.5), f" {rate:.0f}/s")


if __name__ == "__main__":
    run(main())
