"""After a power failure at any step, the disk holds the complete old or new version."""

import asyncio
import errno
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nodesmith.agent.disk.durable_files import Disk
from nodesmith.agent.disk.installed_backends import InstalledBackends
from tests.agent.kill_each_step import put
from tests.agent.plan_steps import roll_back
from tests.agent.test_installed_backends import put as put_digest

MAY_SERVE: dict[str, set[str | None]] = {
    "install": {None, "1"},
    "upgrade": {"1", "2"},
    "upgrade with a previous version": {"2", "3"},
    "rollback": {"2", "1"},
    "upgrade that is undone": {"2", "3"},
    "removal": {"2", None},
}


async def test_kill_at_any_step_leaves_the_complete_old_or_new_version(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.agent.kill_each_step", str(tmp_path / "backends"), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    for change, deaths in json.loads(output).items():
        served = [death["version"] for death in deaths]
        assert set(served) == MAY_SERVE[change], change
        changes = 2 if change == "upgrade that is undone" else 1
        assert sum(one != other for one, other in itertools.pairwise(served)) == changes, f"{change} flickers"
        for death in deaths:
            assert_whole(change, death)
        assert [death["lived"] for death in deaths] == [False] * (len(deaths) - 1) + [True]


def assert_whole(change: str, death: dict[str, Any]) -> None:
    where = f"{change}, killed before step {death['steps']}"
    assert death["content"] == death["data"] == death["version"], where
    if death["version"] is not None:
        assert death["files"] == ["lib", "lib/data", "metadata.json", "run.sh"], where
    assert death["leftovers"] == [], where


class Recorded(Disk):
    """Records every disk operation and its path."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def write(self, path: Path, content: bytes, mode: int) -> None:
        super().write(path, content, mode)
        self.steps.append(("sync", path.name))

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.steps.append(("sync", path.name))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.steps.append(("rename", f"{old.name} -> {new.name}"))


def test_all_files_are_synced_before_the_pointer_moves(tmp_path: Path):
    disk = Recorded()
    backends = InstalledBackends(tmp_path / "backends", disk)
    backends.remove_leftovers()
    put(backends, "1")
    disk.steps.clear()
    put(backends, "2")
    staged = next(step for step in disk.steps if step[1].startswith(".staging") and step[0] == "rename")
    placed, current = disk.steps.index(staged), disk.steps.index(("rename", ".current.draft -> current"))
    previous = disk.steps.index(("rename", ".previous.draft -> previous"))
    before, between, after = disk.steps[:placed], disk.steps[placed + 1 : previous], disk.steps[current + 1 :]
    assert staged[1].endswith(" -> 2")
    for name in ("run.sh", "data", "metadata.json", "lib", staged[1].split(" -> ")[0]):
        assert ("sync", name) in before
    assert between == [("sync", "echo")]
    assert disk.steps[previous + 1 : current] == [("sync", "echo")]
    assert after == [("sync", "echo"), ("sync", "backends")]


class NoLinks(Disk):
    def symlink(self, link: Path, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")


def test_switch_is_one_rename_on_a_disk_without_links(tmp_path: Path):
    backends = InstalledBackends(tmp_path / "backends", NoLinks())
    backends.remove_leftovers()
    put_digest(backends, "1", "a")
    put_digest(backends, "2", "b")
    folder = tmp_path / "backends" / "echo"
    assert not (folder / "current").is_symlink()
    assert ((folder / "current").read_text(), (folder / "previous").read_text()) == ("2", "1")
    live, installed = backends.live("echo"), backends.installed("echo")
    assert live is not None
    assert installed is not None
    assert (live / "run.sh").read_text() == "2 b"
    assert (installed.version, installed.previous_version) == ("2", "1")
    roll_back(backends)
    InstalledBackends(tmp_path / "backends").remove_leftovers()
    assert [each.version for each in backends.everything()] == ["1"]


def test_other_disk_errors_are_not_mistaken_for_missing_link_support(tmp_path: Path):
    class Full(Disk):
        def symlink(self, link: Path, target: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    backends = InstalledBackends(tmp_path / "backends", Full())
    backends.remove_leftovers()
    with pytest.raises(OSError, match="No space"):
        put_digest(backends, "1", "a")
    assert backends.installed("echo") is None
