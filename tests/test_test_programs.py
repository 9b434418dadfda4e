"""`tools/test-programs` on other machines, simulated by fake programs on a separate PATH."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WANTED = ("chromium", "docker-registry")


@dataclass
class Machine:
    """The programs on PATH, and a record of the calls of apt-get."""

    folder: Path

    def has(self, name: str, script: str = "") -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def run(self) -> "subprocess.CompletedProcess[str]":
        command = [shutil.which("bash") or "", str(ROOT / "tools" / "test-programs")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(self.folder)})
        assert done.returncode == 0, done.stderr
        return done

    @property
    def asked(self) -> list[str]:
        log = self.folder / "asked"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with root and apt-get, and without the programs."""
    machine = Machine(tmp_path)
    (tmp_path / "bash").symlink_to(shutil.which("bash") or "")
    machine.has("id", "echo 0")
    machine.has("apt-get", f'echo "$*" >> {tmp_path}/asked')
    return machine


def test_nothing_is_installed_when_all_programs_exist(machine: Machine) -> None:
    for name in WANTED:
        machine.has(name)
    assert machine.run().stdout == ""
    assert machine.asked == []


def test_root_installs_those_that_are_missing(machine: Machine) -> None:
    machine.has("chromium")
    assert machine.run().stdout == ""
    assert machine.asked == ["update -qq", "install -y -qq --no-install-recommends docker-registry"]


@pytest.mark.parametrize("why", ["only root can install it", "there is no apt-get here", "apt-get did not succeed"])
def test_where_nothing_can_be_installed_the_skipped_tests_are_named(machine: Machine, why: str) -> None:
    if why.startswith("only root"):
        machine.has("id", "echo 1000")
    elif why.startswith("there is no"):
        (machine.folder / "apt-get").unlink()
    else:
        machine.has("apt-get", "exit 100")
    said = machine.run().stdout
    for name in WANTED:
        assert f"without {name} ({why}" in said
    assert "tests/browser" in said
    assert "tests/agent/test_images.py" in said


def test_continuous_integration_installs_the_programs_before_the_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.endswith("tools/test-programs\nexec make test\n")
