"""Credentials of a source: set once, used by control plane and node, and stored nowhere else."""

import asyncio
import mmap
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodesmith.domain.operation import ENDED
from nodesmith.gallery.registry import basic
from nodesmith.stack.certificates import Certificates
from tests.agent import web
from tests.agent.archives import digest, packed
from tests.agent.proxy import forward_proxy
from tests.agent.registry import publish
from tests.agent.web import Web
from tests.e2e.fleet import Fleet
from tests.stack.commands import NODESMITH


@pytest.fixture
def registry() -> Iterator[Web]:
    with web.running() as site:
        yield site


def files_with(folder: Path, word: bytes) -> set[str]:
    """Return every file below the folder that contains this text: databases, logs, homes of agents."""
    found = set()
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink() or path.stat().st_size == 0:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(word) >= 0:
                found.add(str(path.relative_to(folder)))
    return found


async def test_source_password_reaches_the_node_and_is_written_nowhere(fleet: Fleet, registry: Web) -> None:
    """From `nodesmith sources add` to a pull: no workflow input, event, row or log contains password or token."""
    password, name = f"hush-{secrets.token_hex(12)}", f"sealed-{secrets.token_hex(4)}"
    registry.token = f"token-{secrets.token_hex(12)}"
    registry.token_credential = basic("robot", password)
    image = publish(registry, [packed(run_sh=b"#!/bin/sh\n")], token=registry.token)
    refused = await fleet.install("agent-2", uri=image.reference, name=name)
    assert (refused.status_code, refused.json()["code"]) == (409, "registry_denied")
    registry.seen.clear()

    folder = fleet.machine.folder
    add = [NODESMITH, "sources", "add", image.host, "--username", "robot", "--password-stdin", "--home", str(folder)]
    done = await asyncio.to_thread(subprocess.run, add, input=password, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    op_id = await fleet.accepted("agent-2", uri=image.reference, name=name)
    ended = await fleet.ended(op_id)
    assert (ended["state"], ended["uri"]) == ("succeeded", f"{image.reference}@{image.digest}"), ended
    asked = [seen.path for seen in registry.seen]
    assert asked.count(f"/v2/{image.name}/manifests/{image.tag}") == 2, "without and with a token, never from the node"
    assert image.blob_path() in asked

    said = str(ended) + done.stdout + done.stderr
    await assert_nowhere(folder, name, said, [password, registry.token, *as_basic("robot", password)])


def as_basic(username: str, password: str) -> list[str]:
    return [basic(username, password).removeprefix("Basic ")]


async def assert_nowhere(folder: Path, name: str, said: str, secrets_: list[str]) -> None:
    """Assert that rows, runs and homes contain the backend's name, but none of the secrets."""
    marked = {Path(path).parts[0] for path in await asyncio.to_thread(files_with, folder, name.encode())}
    assert marked >= {"postgres", "temporal", "agents"}, marked
    for secret in secrets_:
        assert await asyncio.to_thread(files_with, folder, secret.encode()) == set()
        assert secret not in said


@pytest.mark.parametrize("right", [True, False], ids=["used", "refused by the proxy"])
async def test_source_configuration_of_a_web_server_is_written_nowhere(
    fleet: Fleet, tmp_path: Path, right: bool
) -> None:
    """Password, certificates and proxy of one host, for a gallery and for the archive that it lists."""
    host, name = f"files-{secrets.token_hex(4)}.invalid", f"sealed-{secrets.token_hex(4)}"
    password, toll = f"hush-{secrets.token_hex(12)}", f"toll-{secrets.token_hex(12)}"
    company = Certificates(tmp_path)
    company.ensure(host)
    archive = packed(run_sh=b"#!/bin/sh\n")
    index = f"- name: {name}\n  uri: {name}.tar.gz\n  sha256: {digest(archive)}\n"
    with web.running(certificates=company) as site:
        site.serve("/index.yaml", index.encode(), basic=basic("robot", password))
        site.serve(f"/{name}.tar.gz", archive, basic=basic("robot", password))
        async with forward_proxy() as proxy:
            proxy.credential = basic("me", toll)
            proxy.knows = {f"{host}:443": site}
            folder = fleet.machine.folder
            way = ["--ca", str(company.ca), "--proxy", proxy.url(f"me:{toll}@")]
            add = [NODESMITH, "sources", "add", host, "--username", "robot", "--password-stdin", "--home", str(folder)]
            done = await asyncio.to_thread(subprocess.run, add + way, input=password, text=True, capture_output=True)
            assert done.returncode == 0, done.stderr
            gallery = {"name": name, "url": f"https://{host}/index.yaml"}
            listed = await fleet.http.post("/api/v1/galleries", json=gallery)
            assert listed.status_code == 201, listed.text
            proxy.credential = proxy.credential if right else "nobody"
            ended = await fleet.until(await fleet.accepted("agent-2", backend=name), has_result)
            known = await fleet.http.get("/api/v1/sources")
            await fleet.http.delete(f"/api/v1/galleries/{name}")
    assert (ended["state"] == "succeeded") is right, ended
    said = str(ended) + done.stdout + done.stderr + listed.text + known.text
    certificate = company.ca.read_text().splitlines()[2]
    secret = [password, toll, *as_basic("robot", password), *as_basic("me", toll), certificate]
    await assert_nowhere(folder, name, said, secret)
    if not right:
        await fleet.cancel(ended["op_id"])


def has_result(operation: dict[str, Any]) -> bool:
    """Return whether the operation has ended, or waits for a retry with the reason of the first attempt."""
    return operation["state"] in (*ENDED, "waiting")
