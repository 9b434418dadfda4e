"""Attacks by the owner of a web server, of a registry, or of an index: galleries, signatures, passwords, addresses."""

import shutil
import uuid
from pathlib import Path

from nodesmith.gallery.minisign import SecretKey
from tests.agent.registry import publish
from tests.agent.web import running
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System, expect_status
from tests.gallery.test_signed_index import Gallery, entry

ALIASES = 200_000


async def unsigned_artifact(system: System) -> str:
    """The index is valid, but the archive has no signature by a key that the gallery trusts."""
    index = _folder(system) / "index.yaml"
    index.write_text(entry("unsigned"))
    name = await _add(system, index, {"policy": "signed", "keys": [SecretKey.make().public_text()]})
    try:
        return expect_status(await system.fleet.install("agent-2", backend=f"{name}@unsigned"), 409)
    finally:
        await system.fleet.http.delete(f"/api/v1/galleries/{name}")


async def rolled_back_index(system: System) -> str:
    """The web server serves last week's index with its signed metadata."""
    folder = _folder(system)
    published = Gallery(folder)
    old = folder.parent / f"{folder.name}-old"
    published.keep(old)
    published.publish("second")
    name = await _add(system, published.index, {"policy": "signed", "root": published.root})
    try:
        for document in ("index.yaml", "metadata/timestamp.json"):
            shutil.copy(old / document, folder / document)
        return await _refused(system, name)
    finally:
        await system.fleet.http.delete(f"/api/v1/galleries/{name}")


async def replaced_index(system: System) -> str:
    """The web server adds an entry to a signed index."""
    published = Gallery(_folder(system))
    name = await _add(system, published.index, {"policy": "signed", "root": published.root})
    try:
        published.publish("second")
        published.index.write_text(entry("evil!!"))
        return await _refused(system, name)
    finally:
        await system.fleet.http.delete(f"/api/v1/galleries/{name}")


async def endless_aliases(system: System) -> str:
    """1 MB of YAML that lists one entry 200,001 times."""
    index = _folder(system) / "index.yaml"
    index.write_text("- &a {name: a, uri: registry.invalid/a/b:1}\n" + "- *a\n" * ALIASES)
    answer = await system.fleet.http.post("/api/v1/galleries", json={"name": _name(), "url": index.as_uri()})
    return expect_status(answer, 400)


async def foreign_realm(system: System) -> str:
    """A registry redirects the control plane's password to another host."""
    with running() as registry, running() as thief:
        host = registry.url.removeprefix("http://")
        image = publish(registry, [b"layer"], token="never")
        registry.url = thief.url  # the challenge names a token service on another host
        await system.fleet.http.put(f"/api/v1/sources/{host}", json={"username": "ada", "password": "s3cret"})
        answer = await system.fleet.install("agent-2", uri=f"{host}/{image.name}:{image.tag}")
        await system.fleet.http.delete(f"/api/v1/sources/{host}")
        if any("Basic" in seen.headers.get("Authorization", "") for seen in thief.seen):
            raise AttackSucceeded("The other host got the password.")
        return expect_status(answer, 400, 403, 409)


async def oversized_token(system: System) -> str:
    """A token service answers with a token and 32 MB."""
    with running() as registry:
        image = publish(registry, [b"layer"], token=registry.token)
        registry.token_padding = 32 * 1024 * 1024
        answer = await system.fleet.install("agent-2", uri=image.reference, name="oversized")
        refused = expect_status(answer, 400, 403, 409, 502, 503)
        if not any(seen.path == "/token" for seen in registry.seen):
            raise AttackSucceeded(f"the attack was carried out wrongly: no token was requested ({refused})")
        return refused


async def presigned_query(system: System) -> str:
    """A viewer reads the secret in the URL of an archive."""
    index = _folder(system) / "index.yaml"
    sha256 = "a" * 64
    index.write_text(f"- {{name: presigned, uri: 'https://files.invalid/a.tar.gz?sig=s3cr3t', sha256: {sha256}}}\n")
    name = await _add(system, index, {"policy": "digest"})
    try:
        async with system.client(await system.token("viewer")) as http:
            answers = [await http.get(path, params={"gallery": name}) for path in ("/api/v1/backends", "/api/backends")]
        for answer in answers:
            if "s3cr3t" in answer.text or "presigned" not in answer.text:
                raise AttackSucceeded(f"The catalogue shows it: {answer.text[:200]}")
        return "the answer leaves out the query"
    finally:
        await system.fleet.http.delete(f"/api/v1/galleries/{name}")


def _name() -> str:
    return f"attack-{uuid.uuid4().hex[:8]}"


def _folder(system: System) -> Path:
    folder = system.scratch / _name()
    folder.mkdir(mode=0o755)
    return folder


async def _add(system: System, index: Path, trust: dict[str, object]) -> str:
    name = _name()
    answer = await system.fleet.http.post("/api/v1/galleries", json={"name": name, "url": index.as_uri(), **trust})
    answer.raise_for_status()
    return name


async def _refused(system: System, name: str) -> str:
    """Return why the gallery refuses its new index; it keeps the backends of the last good one."""
    read = (await system.fleet.http.post(f"/api/v1/galleries/{name}/refresh")).json()
    if not read["error"]:
        raise AttackSucceeded(f"The index was taken over: version {read['index_version']}.")
    return str(read["error"]).partition(": ")[2][:120]


ATTACKS = (
    Attack("a signed gallery offers an artifact without a signature", Severity.HIGH, unsigned_artifact),
    Attack("the owner of a web server rolls a signed index back", Severity.HIGH, rolled_back_index),
    Attack("the owner of a web server changes a signed index", Severity.HIGH, replaced_index),
    Attack("a registry sends its password to another host", Severity.MEDIUM, foreign_realm),
    Attack("a gallery of 200,001 aliases holds up the API", Severity.LOW, endless_aliases),
    Attack("a viewer reads the query of a presigned address", Severity.LOW, presigned_query),
    Attack("a token service answers with 32 MB", Severity.MEDIUM, oversized_token),
)
