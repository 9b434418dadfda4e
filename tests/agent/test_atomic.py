"""After a power failure at any step, the disk holds the complete old or new version."""

import asyncio
import errno
import itertools
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from nodesmith.agent.disk.durable_files import Disk, sync_tree
from nodesmith.agent.disk.file_system_sync import can_sync_file_system
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

    def __init__(self, *, syncs_file_systems: bool = True) -> None:
        self.steps: list[tuple[str, str]] = []
        self.syncs_file_systems = syncs_file_systems

    def write(self, path: Path, content: bytes, mode: int) -> None:
        super().write(path, content, mode)
        self.steps.append(("sync", path.name))

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.steps.append(("sync", path.name))

    def sync_file_system(self, folder: Path) -> bool:
        self.steps.append(("sync all", folder.name))
        return super().sync_file_system(folder) and self.syncs_file_systems

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


def _tree_of_many(tmp_path: Path) -> Path:
    (root := tmp_path / "tree").mkdir()
    for number in range(101):
        (root / f"{number}").write_text("x")
    return root


def test_a_large_tree_is_synced_with_its_file_system(tmp_path: Path):
    root, disk = _tree_of_many(tmp_path), Recorded()
    sync_tree(root, threading.Event(), disk)
    expected = [("sync all", "tree")] if can_sync_file_system(root) else [("sync all", "tree"), ("sync", "0")]
    assert disk.steps[: len(expected)] == expected
    assert ("sync", "tree") not in disk.steps or not can_sync_file_system(root)


def test_each_file_is_synced_where_the_file_system_cannot_be(tmp_path: Path):
    disk = Recorded(syncs_file_systems=False)
    sync_tree(_tree_of_many(tmp_path), threading.Event(), disk)
    assert {name for step, name in disk.steps if step == "sync"} == {"tree", *(str(number) for number in range(101))}


@pytest.mark.parametrize(
    ("kind", "release", "is_suitable"),
    [
        ("ext4", "6.1.0-27-amd64", True),
        ("xfs", "5.8", True),
        ("ext4", "5.7.19", False),
        ("fuse.sshfs", "6.1.0", False),
        ("overlay", "6.1.0", False),
        ("nfs4", "6.1.0", False),
    ],
)
def test_only_file_systems_with_a_durable_sync_are_synced_as_a_whole(
    tmp_path: Path, kind: str, release: str, is_suitable: bool
):
    device, mounts = tmp_path.stat().st_dev, tmp_path / "mountinfo"
    mounts.write_text(f"36 35 {os.major(device)}:{os.minor(device)} / / rw master:1 - {kind} /dev/a rw\n")
    assert can_sync_file_system(tmp_path, mounts=mounts, release=release) is is_suitable
    assert not can_sync_file_system(tmp_path, mounts=tmp_path / "missing", release=release)


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
