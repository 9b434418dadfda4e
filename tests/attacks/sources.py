"""Attacks with source URIs and archives, and on the passwords of sources."""

from functools import partial

from tests.agent.archives import DAMAGED, built, digest, regular, symlink
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System, expect_status

_ANY_DIGEST = "a" * 64
HOST = "registry-of-the-attack.invalid"


async def operator_names_a_uri(system: System) -> str:
    async with system.client(await system.token("operator")) as http:
        body = {"uri": "https://evil.invalid/x.tar.gz", "sha256": _ANY_DIGEST, "name": "evil"}
        answer = await http.post("/api/v1/operations", json={"kind": "install", "node": "agent-2", **body})
    return expect_status(answer, 403)


async def uri_probes(system: System, uri: str) -> str:
    answer = await system.fleet.install("agent-2", uri=uri, sha256=_ANY_DIGEST, name="probe")
    return expect_status(answer, 403)


async def node_asks_for_a_password(system: System) -> str:
    secret = {"username": "robot", "password": "hush"}
    (await system.fleet.http.put(f"/api/v1/sources/{HOST}", json=secret)).raise_for_status()
    async with system.client(system.identity("agent-1")["api_token"]) as http:
        answer = await http.get("/api/node/agent-1/sources", params={"host": HOST})
    return expect_status(answer, 403)


async def archive(system: System, name: str, content: bytes) -> str:
    """Install a malicious archive as an admin; the operation must fail at once with the right reason."""
    file = system.scratch / f"{name}.tar.gz"
    file.write_bytes(content)
    op_id = await system.fleet.accepted("agent-2", uri=file.as_uri(), sha256=digest(content), name=name)
    ended = await system.fleet.ended(op_id)
    if (ended["state"], ended["reason"]) not in (("failed", "bad_archive"), ("failed", "archive_escapes")):
        raise AttackSucceeded(f"the operation ended as {ended['state']}: {ended['message']}")
    return f"the node: {ended['reason']}"


_DRAFT = built(regular("run.sh", b"#!/bin/sh\n"), symlink(".metadata.json.draft", "run.sh"))
_THROUGH_A_LINK = built(symlink("d", "."), regular("d/run.sh"))

ATTACKS = (
    Attack("an operator installs by uri", Severity.HIGH, operator_names_a_uri),
    Attack(
        "a uri reads the cloud's metadata", Severity.MEDIUM, partial(uri_probes, uri="http://169.254.169.254/latest")
    ),
    Attack("a uri probes a port of a private network", Severity.LOW, partial(uri_probes, uri="oci://10.0.0.1:22/a/b")),
    Attack("a node asks for the password of any host", Severity.LOW, node_asks_for_a_password),
    Attack("an archive plants a link for our metadata", Severity.LOW, partial(archive, name="draft", content=_DRAFT)),
    Attack(
        "an archive writes through its own link", Severity.HIGH, partial(archive, name="link", content=_THROUGH_A_LINK)
    ),
    Attack(
        "an archive of 1,500 folders is tried for ever",
        Severity.LOW,
        partial(archive, name="deep", content=DAMAGED["paths of 1,500 folders"]),
    ),
)
