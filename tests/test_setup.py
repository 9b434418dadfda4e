"""`make setup` on machines other than this one: played Pythons on a PATH of their own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/bash
[ "$1" = -c ] || {{ echo "$@" >> {log}; [ "$2" != venv ] || {venv}; exit 0; }}
case "$2" in
  *version_info*print*|*print*version_info*) echo {version} ;;
  *"<= sys.version_info"*) exit {unfit} ;;
  *ensurepip*) exit {bare} ;;
  *executable*) echo "$0" ;;
esac
"""


class Machine:
    """What is on PATH, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.asked = folder / "asked"
        self.asked.touch()
        (folder / "bin").mkdir()
        for program in ("bash", "mkdir", "cp"):
            (folder / "bin" / program).symlink_to(shutil.which(program) or "")

    def python(self, name: str, version: str, *, unfit: bool = False, bare: bool = False) -> Path:
        path = self._folder / "bin" / name
        venv = '{ mkdir -p "${@: -1}/bin"; cp "$0" "${@: -1}/bin/python"; cp "$0" "${@: -1}/bin/uv"; }'
        path.write_text(PYTHON.format(log=self.asked, version=version, unfit=int(unfit), bare=int(bare), venv=venv))
        path.chmod(0o755)
        return path

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": str(self._folder / "bin")}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_newest_python_that_fits_is_taken(machine: Machine) -> None:
    machine.python("python3", "3.15", unfit=True)
    machine.python("python3.11", "3.11")
    newest = machine.python("python3.13", "3.13")
    assert machine.run("tools/python").stdout == f"{newest}\n"


def test_one_without_venv_is_passed_over(machine: Machine) -> None:
    machine.python("python3.14", "3.14", bare=True)
    whole = machine.python("python3.12", "3.12")
    assert machine.run("tools/python").stdout == f"{whole}\n"


def test_without_venv_the_package_is_named(machine: Machine) -> None:
    machine.python("python3", "3.12", bare=True)
    refused = machine.run("tools/python")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "apt install python3.12-venv" in refused.stderr


@pytest.mark.parametrize("there", [[], ["3.10", "3.15"]])
def test_without_a_python_that_fits_the_remedy_is_named(machine: Machine, there: list[str]) -> None:
    for version in there:
        machine.python(f"python{version}", version, unfit=True)
    refused = machine.run("tools/python")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "needs Python 3.11 to 3.14" in refused.stderr
    assert "apt install" in refused.stderr


def test_a_virtual_environment_that_was_left_half_made_is_made_anew(machine: Machine, tmp_path: Path) -> None:
    machine.python("python3", "3.12")
    half = tmp_path / "venv" / "bin"
    half.mkdir(parents=True)
    shutil.copy2(shutil.which("false") or "", half / "python")  # it runs, and has no pip
    done = machine.run("tools/setup", str(tmp_path / "venv"))
    assert done.returncode == 0, done.stderr
    assert f"-m venv --clear {tmp_path / 'venv'}" in machine.asked.read_text()


def test_one_that_is_whole_is_kept(machine: Machine, tmp_path: Path) -> None:
    whole = tmp_path / "venv" / "bin"
    whole.mkdir(parents=True)
    for name in ("python", "uv"):
        shutil.copy2(machine.python("python3", "3.12"), whole / name)
    assert machine.run("tools/setup", str(tmp_path / "venv")).returncode == 0
    assert "-m venv" not in machine.asked.read_text()
    assert os.access(whole / "python", os.X_OK)
