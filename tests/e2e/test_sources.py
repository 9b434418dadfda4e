"""Credentials of a source: given once, used by control plane and node, and to be found nowhere else."""

import asyncio
import mmap
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gallery.registry import basic
from tests.agent import web
from tests.agent.archives import packed
from tests.agent.registry import publish
from tests.agent.web import Web
from tests.e2e.fleet import Fleet
from tests.stack.commands import NODESMITH


@pytest.fixture
def registry() -> Iterator[Web]:
    with web.running() as site:
        yield site


def files_with(folder: Path, word: bytes) -> set[str]:
    """Every file below the folder that has this word in it: databases, logs, homes of agents."""
    found = set()
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink() or path.stat().st_size == 0:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(word) >= 0:
                found.add(str(path.relative_to(folder)))
    return found


async def test_a_password_is_used_by_the_node_and_written_nowhere(fleet: Fleet, registry: Web) -> None:
    """From `nodesmith sources add` to a pull: no workflow input, event, row or log has it; nor the token it gave."""
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
    assert asked.count(f"/v2/{image.name}/manifests/{image.tag}") == 2, "without and with a token, never by the node"
    assert image.blob_path() in asked

    marked = {Path(path).parts[0] for path in await asyncio.to_thread(files_with, folder, name.encode())}
    assert marked >= {"postgres", "temporal", "agents"}, marked
    for secret in (password, registry.token, basic("robot", password).removeprefix("Basic ")):
        assert await asyncio.to_thread(files_with, folder, secret.encode()) == set()
        assert secret not in str(ended) + done.stdout + done.stderr
