"""Attacks with the whole identity of one node: false, odd and endless reports, signed with its own key."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from nats.aio.msg import Msg

from nodesmith.agent.machine import machine_id
from nodesmith.bus.connection import Bus
from nodesmith.bus.nkeys import KeyPair, Role
from nodesmith.bus.reports import NodeReports
from nodesmith.bus.signed_messages import Signed
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import Outcome, Progress, Result
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System, expect_status
from tests.attacks.nats import as_node
from tests.e2e.slow_source import package

HOSTILE, VICTIM = "agent-1", "agent-2"
_BEYOND_PYTHON = "9999-12-31T23:59:59-14:00"
_MANY = 20_000


async def _node(system: System, name: str) -> dict[str, object]:
    found: dict[str, object] = (await system.fleet.http.get(f"/api/v1/nodes/{name}")).raise_for_status().json()
    return found


async def _beat(system: System, bus: Bus, number: int, **fields: object) -> None:
    """Send a heartbeat of the hostile node, as its registered process would."""
    node = await _node(system, HOSTILE)
    beat = {"node_id": node["id"], "boot_id": node["boot_id"], "seq": 10_000_000 + number, **fields}
    payload = json.dumps(beat).encode()
    await bus.publish(subjects.heartbeat(str(node["id"])), bus.seal(Signed.HEARTBEAT, str(node["id"]), payload))


async def _expect_two_heartbeats(system: System, name: str) -> None:
    seen: set[object] = set()
    try:
        async with asyncio.timeout(60):
            while len(seen) < 3:
                seen.add((await _node(system, name))["last_heartbeat"])
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AttackSucceeded(f"no heartbeat of {name} was recorded any more") from None


async def _expect_install(system: System, name: str) -> None:
    built, path = package(1000), system.scratch / f"{uuid.uuid4().hex}.tar.gz"
    path.write_bytes(built.content)
    family = f"beside-{uuid.uuid4().hex[:8]}"
    op_id = await system.fleet.accepted(name, uri=path.as_uri(), sha256=built.sha256, name=family)
    ended = await system.fleet.ended(op_id)
    if ended["state"] != "succeeded":
        raise AttackSucceeded(f"an install on {name} ended as {ended['state']}: {ended.get('error')}")


async def unreadable_clock(system: System) -> str:
    """Report a time that PostgreSQL stores and no Python program can read back, in each of ten seconds."""
    async with as_node(system, HOSTILE) as bus:
        for number in range(10):
            await _beat(system, bus, number, at=_BEYOND_PYTHON)
            await asyncio.sleep(1)
    await _expect_two_heartbeats(system, VICTIM)
    return "the time is read as unknown; heartbeats of the other node count"


async def false_claims(system: System) -> str:
    """Claim a thousand operations, and outcomes and progress for operations of the other node, all signed."""
    own = str(system.identity(HOSTILE)["node_id"])
    async with as_node(system, HOSTILE) as bus:
        reports = NodeReports(bus, own)
        op_id = str(uuid.uuid4())
        for number in range(5):
            await _beat(system, bus, 100 + number, open_ops=[str(uuid.uuid4()) for _ in range(1000)])
            await reports.outcome(Outcome(op_id=op_id, result=Result.SUCCEEDED, error="x" * 200_000))
            await reports.progress(Progress(op_id=op_id, bytes_done=2**60, percentage=1e300))
            await asyncio.sleep(1)
        await _expect_install(system, VICTIM)
    await _expect_two_heartbeats(system, VICTIM)
    return "signatures name the node and the operation; an install on the other node succeeds meanwhile"


async def flood_of_reports(system: System) -> str:
    """Send outcomes, progress and replies as quickly as possible while the other node installs."""
    own = str(system.identity(HOSTILE)["node_id"])
    async with as_node(system, HOSTILE) as bus:
        envelope = bus.seal(Signed.OUTCOME, own, Outcome(op_id="flood", node_id=own, result=Result.FAILED).encode())

        async def flood() -> None:
            for number in count():
                await bus._client.publish(subjects.outcome(own, "flood"), envelope)
                await bus._client.publish(subjects.progress(own, f"flood-{number}"), b'{"op_id": "flood"}')
                if number % 200 == 0:
                    await asyncio.sleep(0.05)

        flooding = asyncio.create_task(flood())
        try:
            await _expect_install(system, VICTIM)
            await _expect_two_heartbeats(system, VICTIM)
        finally:
            flooding.cancel()
    return "an install on the other node succeeds, and its heartbeats count"


@asynccontextmanager
async def _answering(system: System, answers: list[bytes]) -> AsyncIterator[None]:
    """Answer every request to the hostile node, signed, before its agent does, with one odd answer after the other."""
    own, turn = str(system.identity(HOSTILE)["node_id"]), count()
    async with as_node(system, HOSTILE) as bus:

        async def answer(message: Msg) -> None:
            if message.reply:
                payload = answers[next(turn) % len(answers)]
                await bus.publish(message.reply, bus.seal(Signed.REPLY, message.reply, payload))

        await bus.subscribe(f"nodes.{own}.>", answer)
        await bus.settle()
        yield


ODD = [
    b"",
    b"null",
    b"[" * 200_000,
    b'{"backends": [{"name": "x", "installed_at": "9999-12-31T23:59:59-14:00"}]}',
    b'{"models": [{"model_id": "m", "replica_index": 99999999999999999999999999}]}',
    json.dumps({"op_id": "x", "outcome": "a.b." + "[" * 100_000}).encode(),
    json.dumps({"models": [{"model_id": "m"}] * 20_000}).encode(),
    json.dumps({"backends": [{"name": f"x-{number}", "version": "\0"} for number in range(_MANY)]}).encode(),
    b'{"lines": ["\\ud800"], "keys": ["\xff"], "error": 5}',
]


async def odd_answers(system: System) -> str:
    """Answer requests oddly while people read everything that gathers the answers of all nodes."""
    paths = (await system.fleet.http.get("/openapi.json")).raise_for_status().json()["paths"]
    gathering = [path for path, verbs in paths.items() if "get" in verbs and "{" not in path and "events" not in path]
    statuses: list[str] = []
    async with _answering(system, ODD):
        for _ in ODD:
            await system.fleet.http.post(f"/api/v1/nodes/{HOSTILE}/inventory/refresh")
            for path in gathering:
                answer = await system.fleet.http.get(path)
                if answer.status_code >= 500:
                    raise AttackSucceeded(f"GET {path}: HTTP {answer.status_code} {answer.text[:200]}")
                statuses.append(str(answer.status_code))
            unloaded = await system.fleet.http.post("/api/v1/models/unload", json={"model_name": "m"})
            if unloaded.status_code >= 500:
                raise AttackSucceeded(f"unload everywhere: HTTP {unloaded.status_code} {unloaded.text[:200]}")
        await _expect_install(system, VICTIM)
    return f"{len(statuses)} reads of all nodes were answered ({', '.join(sorted(set(statuses)))})"


async def registration_token_takes_a_running_node(system: System) -> str:
    """Register as a running node, with the machine id that machines of one image share, and no or its own boot id."""
    token = (system.folder / "secrets" / "registration-token").read_text().strip()
    victim = await _node(system, VICTIM)
    said = []
    async with system.client(token) as http:
        for boot_id in ("", victim["boot_id"]):
            body = {"name": VICTIM, "protocol": 2, "machine_id": machine_id(system.folder / "agents" / VICTIM)}
            key = KeyPair.create(Role.USER).public
            answer = await http.post("/api/node/register", json={**body, "boot_id": boot_id, "nats_key": key})
            said.append(expect_status(answer, 409))
    return ", ".join(said)


ATTACKS = (
    Attack("a node reports a time that nobody can read", Severity.HIGH, unreadable_clock, 240),
    Attack("a node claims operations of others, signed", Severity.HIGH, false_claims, 240),
    Attack("a node floods the control plane with its own reports", Severity.MEDIUM, flood_of_reports, 240),
    Attack("a node answers requests with odd and huge messages", Severity.MEDIUM, odd_answers, 300),
    Attack("a registration token takes a running node", Severity.HIGH, registration_token_takes_a_running_node),
)
