"""Attacks on the embedded Temporal server and its Web UI, by local programs, web pages and lower roles."""

import json
import uuid

import httpx2
import psutil
from temporalio.client import Client

from nodesmith.runtime.temporal import connect
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System, expect_status

FOREIGN = {"Content-Type": "text/plain", "Host": "evil.example", "Origin": "http://evil.example"}
START = json.dumps({"workflowType": {"name": "BackendOperation"}, "taskQueue": {"name": "nodesmith-node"}})


def _start(workflow_id: str) -> str:
    return f"/api/v1/namespaces/default/workflows/{workflow_id}"


async def page_starts_a_run(system: System) -> str:
    """Try every listening port of this machine, with a foreign Host and Origin, and bypass the Web UI's CSRF check."""
    forged = f"forged-{uuid.uuid4()}"
    async with httpx2.AsyncClient(trust_env=False, timeout=5) as page:
        for port in _listening(system):
            for more in ({}, {"Authorization": "x"}):
                try:
                    url = f"http://127.0.0.1:{port}{_start(forged)}"
                    answer = await page.post(url, content=START, headers={**FOREIGN, **more})
                except httpx2.TransportError:
                    continue
                if answer.is_success:
                    raise AttackSucceeded(f"port {port} took it: {answer.text[:200]}")
    return "every listening port: no HTTP, TLS only, 401 or 403"


def _listening(system: System) -> list[int]:
    ports = set(system.ports.values())
    return sorted(
        {
            each.laddr[1]
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr[1] in ports
        }
    )


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
    Attack("a local program uses Temporal over gRPC", Severity.HIGH, local_user_speaks_grpc),
    Attack("a stranger reads runs in the Temporal Web UI", Severity.HIGH, stranger_reads_the_web_ui),
    Attack("a viewer terminates a run in the Temporal Web UI", Severity.HIGH, viewer_terminates_a_run),
    Attack("a page reads the Temporal Web UI by DNS rebinding", Severity.MEDIUM, rebound_name_reads_the_web_ui),
)
