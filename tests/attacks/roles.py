"""Attacks with a credential of a lower role, or none."""

from collections.abc import Iterable

import httpx2

from tests.attacks.frame import Attack, AttackSucceeded, Severity, System, expect_status

INSTALLS = {
    "/api/v1/operations": {"kind": "install", "node": "agent-2", "backend": "echo"},
    "/api/nodes/agent-2/backends/install": {"backend": "echo"},
}
"""our own route and LocalAI's"""


def _all_refused(answers: Iterable[httpx2.Response], *statuses: int) -> str:
    return "; ".join(expect_status(answer, *statuses) for answer in answers)


async def viewer_installs(system: System) -> str:
    async with system.client(await system.token("viewer")) as http:
        answers = [await http.post(path, json=body) for path, body in INSTALLS.items()]
    return _all_refused(answers, 403)


async def stranger_installs(system: System) -> str:
    async with system.client() as http:
        answers = [await http.post(path, json=body) for path, body in INSTALLS.items()]
    return _all_refused(answers, 401)


async def node_token_installs(system: System) -> str:
    async with system.client(system.identity("agent-1")["api_token"]) as http:
        answers = [await http.post(path, json=body) for path, body in INSTALLS.items()]
    return _all_refused(answers, 401, 403)


async def operator_retries_by_uri(system: System) -> str:
    """An admin requested the URI once, and the operation failed."""
    (file := system.scratch / "retried.tar.gz").write_bytes(b"something else")
    op_id = await system.fleet.accepted("agent-2", uri=file.as_uri(), sha256="0" * 64, name="retried")
    await system.fleet.ended(op_id)
    async with system.client(await system.token("operator")) as http:
        return expect_status(await http.post(f"/api/v1/operations/{op_id}/retry"), 403)


async def viewer_reads_a_presigned_address(system: System) -> str:
    """Read the query of a URI that an admin requested; the audit trail contains the request."""
    body = {"uri": "https://files.invalid/x.tar.gz?signature=hush", "sha256": "0" * 64, "name": "presigned"}
    op_id = await system.fleet.accepted("agent-2", **body)
    if "signature=hush" not in (await system.fleet.http.get("/api/v1/audit")).text:
        raise AttackSucceeded("the attack was carried out wrongly: an admin does not see the query either")
    async with system.client(await system.token("viewer")) as http:
        trail = (await http.get("/api/v1/audit")).text
    if "signature=hush" in trail or "files.invalid/x.tar.gz" not in trail:
        raise AttackSucceeded(f"it is in the audit trail, or the row is not: {trail[:200]}")
    await system.fleet.cancel(op_id)
    return "queries are shown to admins only"


ATTACKS = (
    Attack("a viewer's token installs a backend", Severity.HIGH, viewer_installs),
    Attack("a client without a credential installs a backend", Severity.HIGH, stranger_installs),
    Attack("an operator retries an admin's install by uri", Severity.MEDIUM, operator_retries_by_uri),
    Attack("a viewer reads a presigned address in the audit trail", Severity.MEDIUM, viewer_reads_a_presigned_address),
    Attack("a node's HTTP credential installs on another node", Severity.CRITICAL, node_token_installs),
)
