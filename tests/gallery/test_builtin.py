import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from nodesmith.domain.artifact import Artifact
from nodesmith.gallery.archive_packing import pack
from nodesmith.gallery.builtin import BuiltinGallery

ALL = ["1", "2", "3-broken"]


def echo(folder: Path, version: str) -> tuple[Artifact, Path]:
    artifact = BuiltinGallery(folder).catalogue().resolve("echo", version)
    assert artifact is not None
    return artifact, folder / artifact.uri.removeprefix("/artifacts/")


@contextmanager
def running(archive: Path, folder: Path) -> Iterator[str]:
    """Unpack and start the backend; yield its address."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder)
    environment = {**os.environ, "PYTHON": sys.executable}
    with subprocess.Popen(
        [folder / "run.sh", "--addr", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
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
    assert len({entry.artifact.sha256 for entry in one}) == len(ALL)


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
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"echo-{version}.tar.gz" for version in ALL]


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
