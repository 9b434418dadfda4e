"""`make attack`: runs each attack against a real system and prints what refused it."""

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from nodesmith.stack.servers import isolation
from tests.attacks import (
    api,
    artifacts,
    backends,
    forged_runs,
    hostile_nodes,
    nats,
    orders,
    registration,
    roles,
    sources,
    temporal,
)
from tests.attacks.frame import Attack, System, Verdict, judge
from tests.e2e.fleet import Fleet
from tests.stack.commands import Machine

MODULES = (roles, api, artifacts, backends, sources, nats, temporal, forged_runs, orders, hostile_nodes, registration)
ATTACKS: tuple[Attack, ...] = tuple(attack for module in MODULES for attack in module.ATTACKS)


@asynccontextmanager
async def running_system() -> AsyncIterator[System]:
    with tempfile.TemporaryDirectory(prefix="nodesmith-attack-") as folder:
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        folders = {f"NODESMITH_{whose}SOURCE_FOLDERS": str(scratch) for whose in ("", "AGENT_")}
        machine = Machine(Path(folder) / "home", environment={**folders, **_chosen_isolation()})
        try:
            ready = await asyncio.to_thread(machine.up, agents=2)
            (scratch / "ready.json").write_text(json.dumps(ready))
            fleet = Fleet(machine)
            yield System(machine, fleet, scratch)
            await fleet.http.aclose()
        finally:
            await asyncio.to_thread(machine.run, "down")


def _chosen_isolation() -> dict[str, str]:
    """`NODESMITH_TEMPORAL_ISOLATION=off make attack` shows what the namespace around Temporal refuses by itself."""
    return {isolation.SETTING: os.environ[isolation.SETTING]} if isolation.SETTING in os.environ else {}


async def run_attacks(chosen: Sequence[Attack]) -> list[Verdict]:
    async with running_system() as system:
        verdicts = []
        for attack in chosen:
            verdicts.append(await judge(attack, system))
            sys.stdout.write(f"{line(verdicts[-1])}\n")
            sys.stdout.flush()
        return verdicts


def line(verdict: Verdict) -> str:
    word = "refused" if verdict.is_refused else "SUCCEEDED"
    return f"{verdict.attack.severity:<9} {word:<9} {verdict.attack.title} -> {verdict.by}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("words", nargs="*", help="only attacks whose title contains one of these")
    words = parser.parse_args(arguments).words
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # refusals are expected
    chosen = [attack for attack in ATTACKS if not words or any(word in attack.title for word in words)]
    verdicts = asyncio.run(run_attacks(chosen))
    succeeded = sum(not verdict.is_refused for verdict in verdicts)
    sys.stdout.write(f"{len(verdicts) - succeeded} of {len(verdicts)} attacks were refused.\n")
    return 1 if succeeded or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
