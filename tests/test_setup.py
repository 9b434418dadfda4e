"""`make setup` on other machines, simulated by fake Pythons on a separate PATH."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nodesmith.stack.home import Home
from nodesmith.stack.lock import HomeLock

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
    """The programs on PATH, and a record of their calls."""

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

    def run(self, *command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": str(self._folder / "bin"), **more}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_newest_python_that_fits_is_taken(machine: Machine) -> None:
    machine.python("python3", "3.15", unfit=True)
    machine.python("python3.11", "3.11")
    newest = machine.python("python3.13", "3.13")
    assert machine.run("tools/python").stdout == f"{newest}\n"


def test_python_without_venv_is_skipped(machine: Machine) -> None:
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


def test_incomplete_virtual_environment_is_created_again(machine: Machine, tmp_path: Path) -> None:
    machine.python("python3", "3.12")
    half = tmp_path / "venv" / "bin"
    half.mkdir(parents=True)
    shutil.copy2(shutil.which("false") or "", half / "python")  # runs, but has no pip
    done = machine.run("tools/setup", str(tmp_path / "venv"))
    assert done.returncode == 0, done.stderr
    assert f"-m venv --clear {tmp_path / 'venv'}" in machine.asked.read_text()


def test_complete_virtual_environment_is_kept(machine: Machine, tmp_path: Path) -> None:
    whole = tmp_path / "venv" / "bin"
    whole.mkdir(parents=True)
    for name in ("python", "uv"):
        shutil.copy2(machine.python("python3", "3.12"), whole / name)
    assert machine.run("tools/setup", str(tmp_path / "venv")).returncode == 0
    assert "-m venv" not in machine.asked.read_text()
    assert os.access(whole / "python", os.X_OK)


@pytest.fixture
def whole(machine: Machine, tmp_path: Path) -> Path:
    """Return the programs of an existing environment."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    shutil.copy2(machine.python("python3", "3.12"), folder / "python")
    return folder


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def test_uv_uses_the_system_certificates(machine: Machine, tmp_path: Path, whole: Path) -> None:
    """A company's CA is in the system's store, but not among uv's bundled roots."""
    program(whole / "uv", f'echo "uv $UV_SYSTEM_CERTS $*" >> {machine.asked}')
    assert machine.run("tools/setup", str(tmp_path / "venv")).returncode == 0
    assert machine.asked.read_text().count("uv true pip install") == 2


def test_pip_is_used_when_uv_fails(machine: Machine, tmp_path: Path, whole: Path) -> None:
    program(whole / "uv", f'echo "uv $*" >> {machine.asked}; exit 1')
    done = machine.run("tools/setup", str(tmp_path / "venv"))
    assert done.returncode == 0, done.stderr
    assert "continuing with pip" in done.stdout
    asked = machine.asked.read_text()
    assert asked.count("uv pip install") == 1, "uv is not called again"
    assert "-m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock" in asked
    assert "-m pip install --quiet --disable-pip-version-check --no-deps" in asked


def test_pip_is_tried_again_with_the_certificates_of_the_system(machine: Machine, tmp_path: Path, whole: Path) -> None:
    program(whole / "uv", "exit 1")
    bundle = tmp_path / "bundle.pem"
    bundle.touch()
    says_whom = f'echo "pip with $PIP_CERT: $*" >> {machine.asked}'
    program(whole / "python", f'[ "$3" != install ] || {{ {says_whom}; [ -n "$PIP_CERT" ]; }}')
    done = machine.run("tools/setup", str(tmp_path / "venv"), SSL_CERT_FILE=str(bundle))
    assert done.returncode == 0, done.stderr
    assert f"pip with {bundle}: -m pip install" in machine.asked.read_text()
    assert f"with the certificates of {bundle}" in done.stderr


def test_setup_fails_when_uv_and_pip_fail(machine: Machine, tmp_path: Path, whole: Path) -> None:
    program(whole / "uv", "exit 1")
    program(whole / "python", '[ "$3" != install ]')
    assert machine.run("tools/setup", str(tmp_path / "venv"), PIP_CERT="/given").returncode != 0


def make_clean(tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    command = ["make", "clean", f"VENV={tmp_path / 'venv'}", f"HOME_DIR={tmp_path / 'home'}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_make_clean_refuses_under_a_running_system(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    (tmp_path / "venv").mkdir()
    lock = HomeLock.acquire(home.lock_file)
    refused = make_clean(tmp_path)
    assert refused.returncode != 0
    assert f"Nodesmith runs on {home.folder} (pid {os.getpid()})" in refused.stderr
    assert f"{tmp_path / 'venv'}/bin/nodesmith down --home {home.folder}" in refused.stderr
    assert (home.secrets.is_dir(), (tmp_path / "venv").is_dir()) == (True, True)
    lock.release()
    assert make_clean(tmp_path).returncode == 0
    assert (home.folder.exists(), (tmp_path / "venv").exists()) == (False, False)


def test_make_clean_ignores_files_of_a_killed_system(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "up.pid").write_text("1\n")
    assert make_clean(tmp_path).returncode == 0
    assert not (tmp_path / "home").exists()
