"""Installed backends on disk: several versions, one current, the previous one kept."""

from pathlib import Path

import pytest

from nodesmith.agent.disk.installed_backends import InstalledBackends
from nodesmith.agent.operations.change_plan import Step
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.contracts.nats.messages import Command
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.agent.plan_steps import carry_out, remove, roll_back, staged


@pytest.fixture
def root(tmp_path):
    return tmp_path / "backends"


@pytest.fixture
def backends(root):
    backends = InstalledBackends(root)
    backends.remove_leftovers()
    return backends


def put(backends: InstalledBackends, version: str, digest: str, family: str = "echo") -> None:
    op_id = f"op-{version}-{digest}"
    command = Command(op_id=op_id, family=family, backend=family, version=version, kind=Kind.INSTALL)
    staged(backends, command, {"run.sh": f"{version} {digest}"}, digest * 64)
    carry_out(backends, command)


def serving(root: Path, family: str = "echo") -> str:
    return (root / family / "current" / "run.sh").read_text()


def versions(root: Path, family: str = "echo") -> set[str]:
    return {path.name for path in (root / family).iterdir() if path.is_dir() and not path.is_symlink()}


def test_a_staged_version_is_not_visible(backends, root):
    staging = backends.stage("echo", "op")
    (staging / "run.sh").write_text("half")
    assert backends.installed("echo") is None
    assert backends.everything() == []


def test_a_version_goes_live_and_says_what_it_is(backends, root):
    put(backends, "1", "a")
    installed = backends.installed("echo")
    assert (installed.name, installed.version, installed.digest) == ("echo", "1", "sha256:" + "a" * 64)
    assert installed.installed_at is not None
    assert (serving(root), versions(root)) == ("1 a", {"1"})


def test_the_previous_version_stays_and_older_ones_go(backends, root):
    for version in ("1", "2", "3"):
        put(backends, version, "abc"[int(version) - 1])
    installed = backends.installed("echo")
    assert (installed.version, installed.previous_version) == ("3", "2")
    assert (serving(root), versions(root)) == ("3 c", {"2", "3"})


def test_another_build_of_a_version_gets_its_own_folder(backends, root):
    put(backends, "1", "a")
    put(backends, "1", "b")
    assert (serving(root), versions(root)) == ("1 b", {"1", "1-bbbbbbbbbbbb"})


def test_same_build_installed_again_gets_its_own_folder(backends, root):
    put(backends, "1", "a")
    for _ in range(3):
        put(backends, "1", "a")
        assert serving(root) == "1 a"
    assert len(versions(root)) == 2


def test_without_a_version_the_digest_is_the_name(backends, root):
    put(backends, "", "d")
    assert versions(root) == {"d" * 12}


@pytest.mark.parametrize("version", ["../../evil", "current", "previous", "/abs", ".hidden", "a/b", "x" * 500])
def test_any_version_text_maps_to_a_folder_below_the_backend(backends, root, version, tmp_path):
    put(backends, version, "a")
    assert backends.installed("echo").version == version
    assert len(versions(root)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"backends"}


@pytest.mark.parametrize("family", ["..", ".", "../evil", "a/b", "日本語" * 60, "." * 10, "llama-cpp"])
def test_any_family_text_maps_to_one_folder(backends, root, family, tmp_path):
    put(backends, "1", "a", family=family)
    assert backends.installed(family).family == family
    assert [installed.family for installed in backends.everything()] == [family]
    assert len(list(root.iterdir())) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"backends"}


def test_rollback_swaps_current_and_previous(backends, root):
    put(backends, "1", "a")
    put(backends, "2", "b")
    roll_back(backends)
    back = backends.installed("echo")
    assert (serving(root), back.version, back.previous_version) == ("1 a", "1", "2")
    roll_back(backends)
    forth = backends.installed("echo")
    assert (serving(root), forth.version, forth.previous_version) == ("2 b", "2", "1")


def test_a_step_that_is_repeated_changes_nothing_more(backends, root):
    """Steps are idempotent: a rollback whose steps are applied twice rolls back once."""
    put(backends, "1", "a")
    put(backends, "2", "b")
    plan = backends.draft(Command(op_id="back", family="echo", kind=Kind.ROLLBACK))
    for _ in range(2):
        for step in plan.steps[: plan.steps.index(Step.PROVEN)]:
            backends.apply_step(step, plan)
        assert (serving(root), backends.installed("echo").previous_version) == ("1 a", "2")
    for _ in range(2):
        backends.revert(plan)
        assert (serving(root), backends.installed("echo").previous_version) == ("2 b", "1")


def test_previous_version_dropped_for_space_is_deleted(backends, root):
    put(backends, "1", "a")
    command = Command(op_id="op", family="echo", backend="echo", version="2", kind=Kind.INSTALL)
    staged(backends, command, {"run.sh": "2 b"}, "b" * 64)
    plan = backends.draft(command)
    for step in plan.steps:
        backends.apply_step(step, plan)
    backends.clean_up(plan, [])
    assert (versions(root), backends.installed("echo").previous_version) == ({"2"}, "")
    with pytest.raises(OperationFailed) as failure:
        roll_back(backends)
    assert failure.value.reason is Reason.NO_PREVIOUS_VERSION


def test_rollback_without_an_installed_version_is_refused(backends):
    with pytest.raises(OperationFailed) as failure:
        roll_back(backends)
    assert failure.value.reason is Reason.NOT_INSTALLED


def test_removal_deletes_every_version(backends, root):
    put(backends, "1", "a")
    put(backends, "2", "b")
    assert backends.has_family("echo")
    remove(backends)
    assert not backends.has_family("echo")
    assert backends.installed("echo") is None
    assert list(root.iterdir()) == []


def test_clean_up_never_deletes_what_a_plan_names(backends, root):
    """Applies at the start of an agent and after another operation."""
    put(backends, "1", "a")
    put(backends, "2", "b")
    back = backends.draft(Command(op_id="back", family="echo", kind=Kind.ROLLBACK))
    backends.apply_step(Step.SET_PREVIOUS, back)  # killed here: nobody points at version 1 any more
    command = Command(op_id="op", family="echo", backend="echo", version="3", kind=Kind.INSTALL)
    staged(backends, command, {"run.sh": "3 c"}, "c" * 64)
    upgrade = backends.draft(command)
    for clean in (
        lambda: InstalledBackends(root).remove_leftovers([back, upgrade]),
        lambda: backends.prune("echo", [back]),
    ):
        clean()
        assert versions(root) == {"1", "2", upgrade.staging}
    removal = backends.draft(Command(op_id="gone", family="echo", kind=Kind.REMOVE))
    backends.apply_step(Step.MOVE_AWAY, removal)
    InstalledBackends(root).remove_leftovers([removal])
    backends.revert(removal)
    assert serving(root) == "2 b"


def test_leftovers_of_a_killed_agent_are_deleted(backends, root):
    put(backends, "1", "a")
    put(backends, "2", "b")
    staging = backends.stage("echo", "half")
    (staging / "run.sh").write_text("half")
    (root / "echo" / "orphan").mkdir()  # placed, but never switched to
    (root / ".removed-x").mkdir()
    InstalledBackends(root).remove_leftovers()
    assert (serving(root), versions(root)) == ("2 b", {"1", "2"})
    assert {path.name for path in root.iterdir()} == {"echo"}
