"""Attacks on the embedded Temporal server and its Web UI, by local programs, web pages and lower roles."""

import json
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx2
import psutil
from temporalio.client import Client

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
        raise AttackSucceeded(f"the attack was played wrongly, no port speaks HTTP: {dict(answers)}")
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
    Attack("a stranger reads runs in the Temporal Web UI", Severity.HIGH, stranger_reads_the_web_ui),
    Attack("a viewer terminates a run in the Temporal Web UI", Severity.HIGH, viewer_terminates_a_run),
    Attack("a page reads the Temporal Web UI by DNS rebinding", Severity.MEDIUM, rebound_name_reads_the_web_ui),
)
