"""Attacks on the embedded Temporal server and its Web UI, by local programs, web pages and lower roles."""

import asyncio
import json
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
from temporalio.client import Client

from nodesmith.contracts.temporal import operations as names
from nodesmith.runtime.temporal import connect
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System, expect_status

FOREIGN = {"Content-Type": "text/plain", "Host": "evil.example", "Origin": "http://evil.example"}
_LISTEN = "0A"
START = json.dumps({"workflowType": {"name": "BackendOperation"}, "taskQueue": {"name": "nodesmith-node"}})


def _start(workflow_id: str) -> str:
    return f"/api/v1/namespaces/default/workflows/{workflow_id}"


async def page_starts_a_run(system: System) -> str:
    """Send what a page can send without asking first: a plain text, with its own Host and Origin."""
    return await _start_everywhere(system, FOREIGN)


async def rebound_page_starts_a_run(system: System) -> str:
    """Send what a page can send under a name that leads to this machine; this header skips the Web UI's CSRF check."""
    return await _start_everywhere(system, {**FOREIGN, "Authorization": "x"})


async def _start_everywhere(system: System, headers: dict[str, str]) -> str:
    """Try each address that a process of the stack listens on, also those in Temporal's own network namespace."""
    forged = f"forged-{uuid.uuid4()}"
    async with httpx2.AsyncClient(trust_env=False, timeout=5) as page:
        answers = Counter(
            [await _answer(page, f"http://{each}{_start(forged)}", headers) for each in _listening(system)]
        )
    if not any(answer.startswith("HTTP") for answer in answers):
        raise AttackSucceeded(f"the attack was carried out wrongly, no port speaks HTTP: {dict(answers)}")
    return ", ".join(f"{number} x {answer}" for answer, number in answers.most_common())


async def _answer(page: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> str:
    try:
        answer = await page.post(url, content=START, headers=headers)
    except httpx2.ConnectError:
        return "not reachable"
    except httpx2.TransportError:
        return "no HTTP"
    if answer.status_code < 400:
        raise AttackSucceeded(f"{url} took it: HTTP {answer.status_code} {answer.text[:200]}")
    return f"HTTP {answer.status_code}"


def _listening(system: System) -> list[str]:
    """Return host:port of each listening socket of the stack's processes and their children, in any namespace."""
    found: set[str] = set()
    for pid in system.machine.pids().values():
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(psutil.NoSuchProcess, FileNotFoundError):
                found |= _sockets(process)
    return sorted(found)


def _sockets(process: psutil.Process) -> set[str]:
    mine, its = (Path(f"/proc/{pid}/ns/net").readlink() for pid in ("self", process.pid))
    if mine != its:
        return _listeners_of_namespace(process.pid)
    sockets = process.net_connections("tcp")
    return {_reachable(each.laddr.ip, each.laddr.port) for each in sockets if each.status == psutil.CONN_LISTEN}


def _listeners_of_namespace(pid: int) -> set[str]:
    """Read what psutil does not: the sockets of another network namespace, of which the stack is the only user."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()]
    ports = {int(fields[1].rpartition(":")[2], 16) for fields in lines if fields[3] == _LISTEN}
    return {f"127.0.0.1:{port}" for port in ports}


def _reachable(ip: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(ip, ip)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


ODD = "\0" + "x" * 200_000


async def odd_signals(system: System) -> str:
    """With a client certificate of the home, send signals of odd content to runs that wait; a person cancels each."""
    client = await connect(system.machine.temporal_settings())
    (await system.fleet.http.put("/api/v1/hold", json={"reason": "attack"})).raise_for_status()
    try:
        ends = [await _end_after(system, client, number, signal) for number, signal in enumerate(_odd_signals())]
    finally:
        (await system.fleet.http.delete("/api/v1/hold")).raise_for_status()
    return f"{len(ends)} runs ended as {', '.join(sorted(set(ends)))}"


def _odd_signals() -> list[tuple[str, Any]]:
    texts = {"by": ODD, "detail": ODD}
    return [
        (names.SIGNAL_CANCEL, texts),
        (names.SIGNAL_CANCEL, {**texts, "force": True}),
        (names.SIGNAL_CANCEL, {"by": {"a": 1}, "mode": ODD}),
        (names.SIGNAL_CANCEL, ["no object"]),
        (names.SIGNAL_PHASE, {"phase": ODD}),
        (names.SIGNAL_OUTCOME, {"outcome": ODD, "result": "succeeded"}),
        (names.SIGNAL_ROW_ENDED, {"end": "succeeded"}),
        (ODD[1:200], {"x": 1}),
    ]


async def _end_after(system: System, client: Client, number: int, signal: tuple[str, Any]) -> str:
    """Return how the operation ended after the signal, and after a cancel by a person if it went on."""
    (archive := system.scratch / "odd-signal.tar.gz").write_bytes(b"x")
    op_id = await system.fleet.accepted("agent-2", uri=archive.as_uri(), sha256="0" * 64, name=f"odd-signal-{number}")
    name, content = signal
    node_id = system.identity("agent-2")["node_id"]
    run = client.get_workflow_handle(names.operation_workflow_id(node_id, f"odd-signal-{number}"))
    await run.signal(name, {"op_id": op_id, **content} if isinstance(content, dict) else content)
    await system.fleet.cancel(op_id)
    try:
        async with asyncio.timeout(20):
            ended = await system.fleet.ended(op_id)
    except TimeoutError:
        raise AttackSucceeded(
            f"the run neither ends nor can be cancelled after {name[:20]} {str(content)[:60]}"
        ) from None
    if ended["state"] == "succeeded" or len(str(ended)) > 20_000:
        raise AttackSucceeded(f"it ended as {ended['state']}, and its answer has {len(str(ended))} characters")
    return str(ended["state"])


async def local_user_speaks_grpc(system: System) -> str:
    try:
        client = await Client.connect(f"127.0.0.1:{system.ports['temporal']}")
        await client.count_workflows()
    except RuntimeError as error:
        return f"the door of the namespace: {str(error)[:80]}"
    raise AttackSucceeded("a client without a certificate listed the runs")


async def stranger_reads_the_web_ui(system: System) -> str:
    async with httpx2.AsyncClient(base_url=system.ready["temporal_ui_url"], trust_env=False) as http:
        return expect_status(await http.get("/api/v1/namespaces/default/workflows"), 401)


async def viewer_terminates_a_run(system: System) -> str:
    client = await connect(system.machine.temporal_settings())
    run = await client.start_workflow("Anything", id=f"bait-{uuid.uuid4()}", task_queue="nobody")
    headers = {"Authorization": f"Bearer {await system.token('viewer')}"}
    async with httpx2.AsyncClient(base_url=system.ready["temporal_ui_url"], headers=headers, trust_env=False) as http:
        refused = expect_status(await http.post(f"{_start(run.id)}/terminate", json={}), 403)
    await run.terminate()
    return refused


async def rebound_name_reads_the_web_ui(system: System) -> str:
    """DNS rebinding: an admin's browser sends the request under the attacker's host name."""
    token = (system.folder / "secrets" / "admin-token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Host": "evil.example"}
    async with httpx2.AsyncClient(base_url=system.ready["temporal_ui_url"], headers=headers, trust_env=False) as http:
        return expect_status(await http.get("/api/v1/namespaces"), 403)


ATTACKS = (
    Attack("a web page starts a workflow in Temporal over HTTP", Severity.HIGH, page_starts_a_run),
    Attack("a page starts a workflow in Temporal by DNS rebinding", Severity.HIGH, rebound_page_starts_a_run),
    Attack("a local program uses Temporal over gRPC", Severity.HIGH, local_user_speaks_grpc),
    Attack("signals of odd content keep a run from ending", Severity.MEDIUM, odd_signals, 240),
    Attack("a stranger reads runs in the Temporal Web UI", Severity.HIGH, stranger_reads_the_web_ui),
    Attack("a viewer terminates a run in the Temporal Web UI", Severity.HIGH, viewer_terminates_a_run),
    Attack("a page reads the Temporal Web UI by DNS rebinding", Severity.MEDIUM, rebound_name_reads_the_web_ui),
)
