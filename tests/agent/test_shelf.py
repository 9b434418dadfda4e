"""The backends on disk: versions side by side, one that serves, the previous one kept."""

import threading
from pathlib import Path

import pytest

from agent.failures import OperationFailed
from agent.shelf import Shelf
from contracts.messages import Command
from domain.operation import Reason

NEVER = threading.Event()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "backends"


@pytest.fixture
def shelf(root):
    shelf = Shelf(root)
    shelf.tidy()
    return shelf


def put(shelf: Shelf, version: str, digest: str, family: str = "echo") -> Path:
    command = Command(op_id=f"op-{version}-{digest}", family=family, backend=family, version=version)
    staging = shelf.stage(family, command.op_id)
    (staging / "run.sh").write_text(f"{version} {digest}")
    shelf.seal(staging, command, digest * 64, NEVER)
    shelf.put_live(family, staging)
    shelf.prune(family)
    return staging


def serving(root: Path, family: str = "echo") -> str:
    return (root / family / "current" / "run.sh").read_text()


def versions(root: Path, family: str = "echo") -> set[str]:
    return {path.name for path in (root / family).iterdir() if path.is_dir() and not path.is_symlink()}


def test_a_staged_version_is_not_visible(shelf, root):
    staging = shelf.stage("echo", "op")
    (staging / "run.sh").write_text("half")
    assert shelf.installed("echo") is None
    assert shelf.everything() == []


def test_a_version_goes_live_and_says_what_it_is(shelf, root):
    put(shelf, "1", "a")
    installed = shelf.installed("echo")
    assert (installed.name, installed.version, installed.digest) == ("echo", "1", "sha256:" + "a" * 64)
    assert installed.installed_at is not None
    assert (serving(root), versions(root)) == ("1 a", {"1"})


def test_the_previous_version_stays_and_older_ones_go(shelf, root):
    for version in ("1", "2", "3"):
        put(shelf, version, "abc"[int(version) - 1])
    installed = shelf.installed("echo")
    assert (installed.version, installed.previous_version) == ("3", "2")
    assert (serving(root), versions(root)) == ("3 c", {"2", "3"})


def test_another_build_of_the_same_version_lies_beside_it(shelf, root):
    put(shelf, "1", "a")
    put(shelf, "1", "b")
    assert (serving(root), versions(root)) == ("1 b", {"1", "1-bbbbbbbbbbbb"})


def test_the_same_build_again_lies_beside_itself(shelf, root):
    put(shelf, "1", "a")
    for _ in range(3):
        put(shelf, "1", "a")
        assert serving(root) == "1 a"
    assert len(versions(root)) == 2


def test_without_a_version_the_digest_is_the_name(shelf, root):
    put(shelf, "", "d")
    assert versions(root) == {"d" * 12}


@pytest.mark.parametrize("version", ["../../evil", "current", "previous", "/abs", ".hidden", "a/b", "x" * 500])
def test_whatever_a_version_holds_it_stays_in_its_folder(shelf, root, version, tmp_path):
    put(shelf, version, "a")
    assert shelf.installed("echo").version == version
    assert len(versions(root)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"backends"}


@pytest.mark.parametrize("family", ["..", ".", "../evil", "a/b", "日本語" * 60, "." * 10, "llama-cpp"])
def test_whatever_a_family_holds_it_is_one_folder_of_its_own(shelf, root, family, tmp_path):
    put(shelf, "1", "a", family=family)
    assert shelf.installed(family).family == family
    assert [installed.family for installed in shelf.everything()] == [family]
    assert len(list(root.iterdir())) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"backends"}


def test_going_back_swaps_the_two_versions_and_again_returns(shelf, root):
    put(shelf, "1", "a")
    put(shelf, "2", "b")
    back = shelf.roll_back("echo")
    assert (serving(root), back.version, back.previous_version) == ("1 a", "1", "2")
    forth = shelf.roll_back("echo")
    assert (serving(root), forth.version, forth.previous_version) == ("2 b", "2", "1")


def test_a_previous_version_that_is_forgotten_is_gone(shelf, root):
    put(shelf, "1", "a")
    put(shelf, "2", "b")
    shelf.forget_previous("echo")
    assert (versions(root), shelf.installed("echo").previous_version) == ({"2"}, "")
    with pytest.raises(OperationFailed) as failure:
        shelf.roll_back("echo")
    assert failure.value.reason is Reason.NO_PREVIOUS_VERSION


def test_removing_takes_every_version_and_says_whether_there_was_one(shelf, root):
    put(shelf, "1", "a")
    put(shelf, "2", "b")
    assert shelf.remove("echo", "op")
    assert not shelf.remove("echo", "op")
    assert shelf.installed("echo") is None
    assert list(root.iterdir()) == []


def test_what_a_killed_agent_left_is_tidied_and_what_serves_stays(shelf, root):
    put(shelf, "1", "a")
    put(shelf, "2", "b")
    staging = shelf.stage("echo", "half")
    (staging / "run.sh").write_text("half")
    (root / "echo" / "orphan").mkdir()  # renamed, but the switch never came
    (root / ".removed-x").mkdir()
    Shelf(root).tidy()
    assert (serving(root), versions(root)) == ("2 b", {"1", "2"})
    assert {path.name for path in root.iterdir()} == {"echo"}
