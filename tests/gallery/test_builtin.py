import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from nodesmith.domain.artifact import Artifact
from nodesmith.gallery.archive_packing import pack
from nodesmith.gallery.builtin import BuiltinGallery
from tests.deadlines import HANGS_S

ALL = ["1", "2", "3-broken"]
LANGUAGE_MODELS = ["1", "2"]


def echo(folder: Path, version: str, name: str = "echo") -> tuple[Artifact, Path]:
    artifact = BuiltinGallery(folder).catalogue().resolve(name, version)
    assert artifact is not None
    return artifact, folder / artifact.uri.removeprefix("/artifacts/")


@contextmanager
def running(archive: Path, folder: Path, *arguments: str) -> Iterator[str]:
    """Unpack and start the backend; yield its address."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder)
    environment = {**os.environ, "PYTHON": sys.executable}
    argv = [str(folder / "run.sh"), "--addr", "127.0.0.1:0", *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout is not None
        try:
            yield "http://" + process.stdout.readline().decode().split()[-1]
        finally:
            process.kill()


@pytest.mark.parametrize("version", ALL)
def test_digest_and_size_are_those_of_the_file_that_is_served(tmp_path: Path, version: str) -> None:
    artifact, archive = echo(tmp_path, version)
    assert artifact.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert artifact.size == archive.stat().st_size


def test_every_replica_packs_the_same_bytes(tmp_path: Path) -> None:
    one, other = (BuiltinGallery(tmp_path / name).catalogue().listed() for name in ("one", "other"))
    assert one == other
    assert len({entry.artifact.sha256 for entry in one}) == len(ALL) + len(LANGUAGE_MODELS)


def test_the_digest_depends_on_names_and_content_alone(tmp_path: Path) -> None:
    def packed(order: list[str], mtime: int, mode: int) -> bytes:
        folder = tmp_path / str(mtime)
        folder.mkdir()
        for name in order:
            (folder / name).write_text(name)
            (folder / name).chmod(mode)
            os.utime(folder / name, (mtime, mtime))
        pack([folder], tmp_path / "packed")
        return (tmp_path / "packed").read_bytes()

    assert packed(["a", "run.sh"], 1, 0o600) == packed(["run.sh", "a"], 2, 0o644)


def test_a_second_use_leaves_nothing_unfinished_behind(tmp_path: Path) -> None:
    for _ in range(2):
        BuiltinGallery(tmp_path).catalogue()
    wanted = [*(f"echo-{version}" for version in ALL), *(f"echo-lm-{version}" for version in LANGUAGE_MODELS)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.tar.gz" for name in wanted)


def test_the_newest_sound_version_is_the_default(tmp_path: Path) -> None:
    assert echo(tmp_path, "")[0].version == "2"


@pytest.mark.parametrize("version", ["1", "2"])
def test_echo_runs_and_is_healthy(tmp_path: Path, version: str) -> None:
    with running(echo(tmp_path, version)[1], tmp_path / "live") as url:
        health = httpx2.get(f"{url}/healthz")
        assert (health.status_code, health.json()["version"]) == (200, version)
        assert httpx2.post(f"{url}/echo", content=b"hello").content == b"hello"
        assert httpx2.get(f"{url}/elsewhere").status_code == 404


def test_the_broken_version_starts_but_fails_its_health_probe(tmp_path: Path) -> None:
    with running(echo(tmp_path, "3-broken")[1], tmp_path / "live") as url:
        assert httpx2.get(f"{url}/healthz").status_code == 503


# echo-lm


def until_loaded(url: str) -> list[int]:
    """The statuses of the health route until it is 200."""
    statuses = [httpx2.get(f"{url}/health").status_code]
    deadline = time.monotonic() + HANGS_S
    while statuses[-1] != 200 and time.monotonic() < deadline:
        time.sleep(0.02)
        statuses.append(httpx2.get(f"{url}/health").status_code)
    return statuses


@pytest.mark.parametrize("version", LANGUAGE_MODELS)
def test_echo_lm_answers_from_the_file_that_it_loads(tmp_path: Path, version: str) -> None:
    (tmp_path / "model.txt").write_text("one two three one two three")
    archive = echo(tmp_path / "gallery", version, "echo-lm")[1]
    with running(archive, tmp_path / "live", "--model", str(tmp_path / "model.txt"), "--name", "count") as url:
        until_loaded(url)
        chat = {"messages": [{"role": "user", "content": "please count: one"}], "max_tokens": 5}
        answer = httpx2.post(f"{url}/v1/chat/completions", json=chat).json()
        text = httpx2.post(f"{url}/v1/completions", json={"prompt": "two", "max_tokens": 2}).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "two three one two three"}
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
    assert (answer["model"], answer["system_fingerprint"]) == ("count", f"echo-lm-{version}")
    assert text["choices"][0]["text"] == "three one"


def test_echo_lm_streams_word_by_word(tmp_path: Path) -> None:
    with running(echo(tmp_path, "", "echo-lm")[1], tmp_path / "live") as url:
        until_loaded(url)
        chat = {"messages": [{"role": "user", "content": "A node"}], "max_tokens": 3, "stream": True}
        said = httpx2.post(f"{url}/v1/chat/completions", json=chat).text
        whole = httpx2.post(f"{url}/v1/chat/completions", json={**chat, "stream": False}).json()
    events = [line.removeprefix("data: ") for line in said.splitlines() if line]
    assert events.pop() == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"]
    assert len(events) == 5


def test_echo_lm_embeds_similar_texts_nearby(tmp_path: Path) -> None:
    with running(echo(tmp_path, "", "echo-lm")[1], tmp_path / "live") as url:
        until_loaded(url)
        texts = ["the agent writes a plan", "the agent wrote a plan", "completely unrelated words here"]
        found = httpx2.post(f"{url}/v1/embeddings", json={"input": texts}).json()["data"]
    one, near, far = (entry["embedding"] for entry in found)
    assert sum(a * b for a, b in zip(one, near, strict=True)) > sum(a * b for a, b in zip(one, far, strict=True))


def test_echo_lm_is_slow_and_large_by_its_options(tmp_path: Path) -> None:
    """The health route says 503 until the model is loaded; each word takes its time."""
    options = ("--load-s", "0.3", "--token-ms", "50", "--memory-mib", "64")
    with running(echo(tmp_path, "", "echo-lm")[1], tmp_path / "live", *options) as url:
        statuses = until_loaded(url)
        began = time.monotonic()
        httpx2.post(f"{url}/v1/completions", json={"prompt": "A", "max_tokens": 4})
        assert time.monotonic() - began >= 0.2
    assert statuses[0] == 503
    assert statuses[-1] == 200


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"messages": 1}', b'{"messages": [], "max_tokens": -1}'])
def test_echo_lm_refuses_a_bad_request_and_goes_on(tmp_path: Path, body: bytes) -> None:
    with running(echo(tmp_path, "", "echo-lm")[1], tmp_path / "live") as url:
        until_loaded(url)
        refused = httpx2.post(f"{url}/v1/chat/completions", content=body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
        assert httpx2.get(f"{url}/v1/models").json()["data"][0]["id"] == "echo-lm"
