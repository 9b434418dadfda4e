"""The backends on disk: versions side by side, one that serves, the previous one kept."""

from pathlib import Path

import pytest

from agent.failures import OperationFailed
from agent.plan import Step
from agent.shelf import Shelf
from contracts.messages import Command
from domain.operation import Kind, Reason
from tests.agent.shelves import carry_out, remove, roll_back, staged


@pytest.fixture
def root(tmp_path):
    return tmp_path / "backends"


@pytest.fixture
def shelf(root):
    shelf = Shelf(root)
    shelf.tidy()
    return shelf


def put(shelf: Shelf, version: str, digest: str, family: str = "echo") -> None:
    op_id = f"op-{version}-{digest}"
    command = Command(op_id=op_id, family=family, backend=family, version=version, kind=Kind.INSTALL)
    staged(shelf, command, {"run.sh": f"{version} {digest}"}, digest * 64)
    carry_out(shelf, command)


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
    roll_back(shelf)
    back = shelf.installed("echo")
    assert (serving(root), back.version, back.previous_version) == ("1 a", "1", "2")
    roll_back(shelf)
    forth = shelf.installed("echo")
    assert (serving(root), forth.version, forth.previous_version) == ("2 b", "2", "1")


def test_a_step_that_is_repeated_changes_nothing_more(shelf, root):
    """Nothing is a toggle: a rollback whose steps are taken twice has gone back once."""
    put(shelf, "1", "a")
    put(shelf, "2", "b")
    plan = shelf.draft(Command(op_id="back", family="echo", kind=Kind.ROLLBACK))
    for _ in range(2):
        for step in plan.steps[: plan.steps.index(Step.PROVEN)]:
            shelf.take(step, plan)
        assert (serving(root), shelf.installed("echo").previous_version) == ("1 a", "2")
    for _ in range(2):
        shelf.go_back(plan)
        assert (serving(root), shelf.installed("echo").previous_version) == ("2 b", "1")


def test_a_previous_version_that_is_given_up_for_space_is_gone(shelf, root):
    put(shelf, "1", "a")
    command = Command(op_id="op", family="echo", backend="echo", version="2", kind=Kind.INSTALL)
    staged(shelf, command, {"run.sh": "2 b"}, "b" * 64)
    plan = shelf.draft(command)
    for step in plan.steps:
        shelf.take(step, plan)
    shelf.clean_up(plan, [])
    assert (versions(root), shelf.installed("echo").previous_version) == ({"2"}, "")
    with pytest.raises(OperationFailed) as failure:
        roll_back(shelf)
    assert failure.value.reason is Reason.NO_PREVIOUS_VERSION


def test_going_back_without_an_installed_version_says_so(shelf):
    with pytest.raises(OperationFailed) as failure:
        roll_back(shelf)
    assert failure.value.reason is Reason.NOT_INSTALLED


def test_removing_takes_every_version(shelf, root):
    put(shelf, "1", "a")
    put(shelf, "2", "b")
    assert shelf.is_there("echo")
    remove(shelf)
    assert not shelf.is_there("echo")
    assert shelf.installed("echo") is None
    assert list(root.iterdir()) == []


def test_clean_up_never_deletes_what_a_plan_names(shelf, root):
    """Neither at the start of an agent, nor after another operation's end."""
    put(shelf, "1", "a")
    put(shelf, "2", "b")
    back = shelf.draft(Command(op_id="back", family="echo", kind=Kind.ROLLBACK))
    shelf.take(Step.SET_PREVIOUS, back)  # killed here: nobody points at version 1 any more
    command = Command(op_id="op", family="echo", backend="echo", version="3", kind=Kind.INSTALL)
    staged(shelf, command, {"run.sh": "3 c"}, "c" * 64)
    upgrade = shelf.draft(command)
    for clean in (lambda: Shelf(root).tidy([back, upgrade]), lambda: shelf.prune("echo", [back])):
        clean()
        assert versions(root) == {"1", "2", upgrade.staging}
    removal = shelf.draft(Command(op_id="gone", family="echo", kind=Kind.REMOVE))
    shelf.take(Step.MOVE_AWAY, removal)
    Shelf(root).tidy([removal])
    shelf.go_back(removal)
    assert serving(root) == "2 b"


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
