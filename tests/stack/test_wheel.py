"""The wheel: installed into a clean environment, outside of the clone, it runs the whole system."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack.commands import Machine

pytestmark = pytest.mark.private_stack

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and our dependencies, and without the clone: a `.pth` file reads no other ones."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    pip += ["--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


@pytest.fixture
def machine(scripts: Path, tmp_path: Path) -> Iterator[Machine]:
    programs = {"PATH": os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))}  # the embedded servers
    machine = Machine(tmp_path / "home", environment=programs, program=str(scripts / "nodesmith"))
    yield machine
    machine.down()


def test_wheel_holds_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"nodesmith"}


def test_old_names_are_not_importable(scripts: Path, tmp_path: Path) -> None:
    code = "import nodesmith.api.app; print(nodesmith.api.app.__file__); import api"
    done = subprocess.run([scripts / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert str(scripts.parent) in done.stdout
    assert "No module named 'api'" in done.stderr


def test_installed_wheel_runs_the_whole_system(machine: Machine) -> None:
    machine.up(agents=1)
    done = machine.run("backends", "install", "echo", "--on", "agent-1", "--watch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded: install echo" in done.stdout
