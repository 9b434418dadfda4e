"""Attacks by a backend on the agent that started it, and on the control plane of the same machine."""

import asyncio
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from tests.agent import deep_backend, hostile_backend
from tests.agent.archives import built, regular
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System

NAME = "hostile"
RUN = f'#!/bin/sh\nexec "{sys.executable}" -u server.py "$@"\n'


async def report_of(system: System) -> dict[str, Any]:
    """Return which attempts of the hostile backend on `agent-1` succeeded; it is installed and started once."""
    kept = system.scratch / "hostile.json"
    if not kept.exists():
        await asyncio.to_thread(_upload, system)
        op_id = await system.fleet.accepted("agent-1", backend=NAME, start=True)
        ended = await system.fleet.ended(op_id)
        if ended["state"] != "succeeded":
            raise RuntimeError(f"the hostile backend does not run: {ended}")
        kept.write_text(_printed(system))
    report: dict[str, Any] = json.loads(kept.read_text())
    return report


def _upload(system: System) -> None:
    archive = system.scratch / f"{NAME}-1.tar.gz"
    files = {
        "run.sh": RUN.encode(),
        "server.py": Path(hostile_backend.__file__).read_bytes(),
        "targets.json": json.dumps(_targets(system)).encode(),
    }
    archive.write_bytes(built(*(regular(name, content) for name, content in files.items())))
    done = system.machine.run("backend", "upload", str(archive))
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)


def _targets(system: System) -> dict[str, Any]:
    home, agent = system.folder, system.folder / "agents" / "agent-1"
    files = [path for path in (home / "secrets").iterdir() if path.is_file()]
    files += [agent / "identity.json", home / "agents" / "agent-2" / "identity.json"]
    return {
        "agent": system.machine.pids()["agent-1"],
        "files": [str(path) for path in files],
        "folders": [str(path) for path in (home, home / "secrets", agent, agent / "journal")],
        "models": [],
        "abstract": "\0nodesmith-attack",
    }


def _printed(system: System) -> str:
    logs = (system.folder / "agents" / "agent-1" / "logs").glob(f"{NAME}*.log")
    return next(line for log in logs for line in log.read_text().splitlines() if line.startswith("{"))


def _judged(report: dict[str, Any], begins: tuple[str, ...]) -> str:
    tries = {name: answer for name, answer in report["attempts"].items() if name.startswith(begins)}
    if got := {name: answer for name, answer in tries.items() if not answer.startswith("refused")}:
        raise AttackSucceeded(str(got)[:300])
    return f"launcher: {len(tries)} of {len(tries)} tries refused ({', '.join(sorted(set(tries.values())))})"


async def files_of_others(system: System) -> str:
    return _judged(
        await report_of(system), ("read", "write", "list", "link", "hard link", "own folder", "mount", "device")
    )


async def process_of_the_agent(system: System) -> str:
    return _judged(await report_of(system), ("/proc", "signal", "ptrace", "descriptor", "memory"))


async def environment_of_the_agent(system: System) -> str:
    state = (await report_of(system))["state"]
    if names := [name for name in state["environment"] if name.startswith("NODESMITH_") or "TOKEN" in name]:
        raise AttackSucceeded(f"has {names}")
    if state["descriptors"] != [0, 1, 2]:
        raise AttackSucceeded(f"has descriptors {state['descriptors']}")
    return "launcher: a clean environment, descriptors 0 to 2"


async def scratch_too_deep(system: System) -> str:
    """A backend fills its scratch folder with folders in folders; then it is removed and its agent starts again."""
    (archive := system.scratch / "deep-1.tar.gz").write_bytes(
        built(regular("run.sh", RUN.encode()), regular("server.py", inspect.getsource(deep_backend).encode()))
    )
    done = await asyncio.to_thread(system.machine.run, "backend", "upload", str(archive))
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)
    ended = await system.fleet.ended(await system.fleet.accepted("agent-1", backend="deep", start=True))
    scratch = system.folder / "agents" / "agent-1" / "scratch" / "deep"
    if ended["state"] != "succeeded" or not any(scratch.glob("*/d/d/d")):
        raise AttackSucceeded(f"the attack was carried out wrongly: {ended['state']}: {ended['message']}")
    removed = await system.fleet.ended(await system.fleet.accepted("agent-1", kind="remove", backend="deep"))
    pid = system.machine.pids()["agent-1"]
    system.fleet.kill("agent-1")
    await system.fleet.restarted("agent-1", pid)
    async with asyncio.timeout(60):
        while scratch.exists():  # noqa: ASYNC110 - the agent deletes it
            await asyncio.sleep(0.2)
    if removed["state"] != "succeeded":
        raise AttackSucceeded(f"the removal ended as {removed['state']}")
    return "the agent deletes it without recursion, and starts"


ATTACKS = (
    Attack("a backend reads the admin token, the node's identity or other files", Severity.CRITICAL, files_of_others),
    Attack("a backend reads or signals the process of its agent", Severity.CRITICAL, process_of_the_agent),
    Attack("a backend reads the agent's environment and descriptors", Severity.HIGH, environment_of_the_agent),
    Attack("a backend makes its scratch folder too deep to delete", Severity.LOW, scratch_too_deep, 120),
)
