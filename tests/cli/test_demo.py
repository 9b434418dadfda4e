"""The demo's tour exits with 0, and its artifact server works correctly."""

import asyncio
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from nodesmith.cli.commands.demo.artifact import NOISE, DemoArtifact, make_artifact
from nodesmith.cli.commands.demo.screen import Screen
from nodesmith.cli.commands.demo.source import Source, serve
from nodesmith.cli.output.render import make_console
from tests.stack.commands import NODESMITH

FAST = 1e9


@pytest.fixture(scope="module")
def artifact() -> DemoArtifact:
    return make_artifact(300_000)


@pytest.fixture
async def source(artifact: DemoArtifact) -> AsyncIterator[Source]:
    async with serve(FAST) as source:
        source.offer("big", artifact)
        yield source


async def get(uri: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as http:
        return await http.get(uri, headers=headers)


def test_artifact_matches_its_digests(artifact: DemoArtifact) -> None:
    assert hashlib.sha256(artifact.content).hexdigest() == artifact.sha256
    with tarfile.open(fileobj=io.BytesIO(artifact.content)) as archive:
        member = archive.extractfile(NOISE)
        assert member is not None
        assert hashlib.sha256(member.read()).hexdigest() == artifact.noise_sha256
        assert archive.getmember("run.sh").mode == 0o755


async def test_the_source_sends_the_whole_and_counts_it(source: Source, artifact: DemoArtifact) -> None:
    answer = await get(source.uri("agent-1", "big"))
    assert (answer.status_code, answer.content) == (200, artifact.content)
    assert source.counter("agent-1", "big").sent == artifact.size
    assert source.counter("agent-2", "big").sent == 0


async def test_source_sends_the_requested_range(source: Source, artifact: DemoArtifact) -> None:
    uri = source.uri("agent-1", "big")
    rest = await get(uri, **{"Range": "bytes=1000-", "If-Range": f'"{artifact.sha256}"'})
    assert (rest.status_code, rest.content) == (206, artifact.content[1000:])
    assert rest.headers["Content-Range"] == f"bytes 1000-{artifact.size - 1}/{artifact.size}"
    changed = await get(uri, **{"Range": "bytes=1000-", "If-Range": '"another"'})
    assert (changed.status_code, len(changed.content)) == (200, artifact.size)


async def test_source_answers_404_for_unknown_names(source: Source) -> None:
    assert (await get(source.uri("agent-1", "other"))).status_code == 404


async def test_source_respects_its_rate(artifact: DemoArtifact) -> None:
    async with serve(artifact.size / 0.5) as source:
        source.offer("big", artifact)
        began = asyncio.get_running_loop().time()
        await get(source.uri("agent-1", "big"))
        assert asyncio.get_running_loop().time() - began >= 0.45


def test_broken_promise_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(make_console())
    screen.check("water is wet", holds=True)
    screen.check("pigs fly", holds=False)
    assert screen.failed == ["pigs fly"]
    assert "kept   water is wet" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.private_stack
@pytest.mark.timeout(240)
def test_the_tour_keeps_every_promise_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [NODESMITH, "demo", "--megabytes", "30"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "lost 0, doubled 0, stuck 0"
    assert done.stdout.count("kept") >= 12
    assert "BROKEN" not in done.stdout
    assert not list(tmp_path.iterdir())
