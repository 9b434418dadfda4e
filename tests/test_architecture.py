"""What the import linter cannot see, and that the linter itself sees what it should."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["importlinter"]["root_packages"]
BESIDE = {"tests", "benchmarks"}
"""folders with Python that are no part of the product"""


def committed_files() -> list[Path]:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def sources() -> list[Path]:
    return [path for path in committed_files() if path.suffix == ".py"]


def top_folder(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


# the layout


def test_every_folder_with_python_is_in_the_import_contracts() -> None:
    assert {top_folder(path) for path in sources()} - BESIDE == set(PACKAGES)


def test_every_folder_with_python_is_type_checked_and_shipped() -> None:
    assert set(PACKAGES) <= set(PROJECT["tool"]["mypy"]["files"])
    assert set(PACKAGES) == set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])


def test_every_package_marker_is_empty() -> None:
    written = [path for path in sources() if path.name == "__init__.py" and path.read_text()]
    assert not written


def test_no_folder_is_a_drawer_for_what_nobody_could_name() -> None:
    drawers = {"utils", "util", "common", "helpers", "misc"}
    assert not [path for path in sources() if drawers & {path.stem, *path.relative_to(ROOT).parts}]


def test_every_test_folder_is_a_package() -> None:
    """Without, tests/api would shadow api."""
    folders = {path.parent for path in sources() if top_folder(path) == "tests"}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


# imports


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names


def test_the_domain_needs_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"domain"}
    foreign = {path.name: imported(path) - allowed for path in sources() if top_folder(path) == "domain"}
    assert not {name: names for name, names in foreign.items() if names}


def test_the_launcher_of_children_needs_the_standard_library_only() -> None:
    """It runs between fork and exec, without our packages on its path."""
    assert imported(ROOT / "stack" / "launch.py") <= sys.stdlib_module_names


@pytest.mark.parametrize("module", ["agent.main", "agent.simulator"])
def test_a_node_carries_nothing_of_the_control_plane(module: str) -> None:
    script = f"import sys, {module}; print({{'temporalio', 'sqlalchemy', 'psycopg', 'fastapi'}} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.strip() == "set()"


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([linter], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copy_of_the_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("sources")
    for path in [ROOT / "pyproject.toml", *(path for path in sources() if top_folder(path) in PACKAGES)]:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return copy


def test_the_sources_keep_the_import_contracts(copy_of_the_sources: Path) -> None:
    done = lint_imports(copy_of_the_sources)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "bad_import", "contract"),
    [
        ("domain", "import contracts.words", "Imports go down only"),
        ("contracts", "import store.database", "Imports go down only"),
        ("store", "import bus.connection", "Imports go down only"),
        ("services", "import activities", "Imports go down only"),
        ("stack", "import cli.main", "Imports go down only"),
        ("services", "import nats", "Orchestration, effects and use cases know no driver"),
        ("workflows", "import sqlalchemy", "Orchestration, effects and use cases know no driver"),
        ("agent", "import temporalio.client", "The agent is another machine"),
        ("agent", "import contracts.temporal", "The agent is another machine"),
        ("cli", "import store.database", "The command line is a client"),
    ],
)
def test_an_import_that_goes_up_breaks_its_contract(
    copy_of_the_sources: Path, module: str, bad_import: str, contract: str
) -> None:
    bad = copy_of_the_sources / module / "goes_up.py"
    bad.write_text(bad_import + "\n")
    try:
        done = lint_imports(copy_of_the_sources)
    finally:
        bad.unlink()
    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout


# what is committed, and what is shipped

# Where packages come from is the machine's business. (A gallery's image reference is data, and its default host too.)
# Spelled in parts, so that this file does not hold what it forbids.
REGISTRIES = ["py" + "pi.org", "python" + "hosted", "npm" + "js.org", "npm" + "js.com", "yarn" + "pkg.com"]
REGISTRIES += ["artifact" + "ory", "jf" + "rog", "deb.deb" + "ian", "proxy.go" + "lang"]
MACHINE = [f"{ROOT}/", f"{Path.home()}/.", "/wo" + "rk/main", "/wo" + "rk/shared"]


def mentions(words: list[str]) -> list[str]:
    wanted = re.compile("|".join(re.escape(word) for word in words), re.IGNORECASE)
    found = []
    for path in committed_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if wanted.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


def test_no_committed_file_names_a_package_registry() -> None:
    assert not mentions(REGISTRIES)


def test_no_committed_file_names_a_folder_of_this_machine() -> None:
    assert not mentions(MACHINE)


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-uv.lock"])
def test_a_lock_pins_by_hash_and_names_no_host(lock: str) -> None:
    text = (ROOT / lock).read_text()
    pinned = re.findall(r"^[a-z0-9][^\s=]*==\S+", text, re.MULTILINE)
    assert pinned
    assert text.count(" \\\n    --hash=sha256:") >= len(pinned)
    assert "://" not in text
    assert "--index" not in text


def test_the_wheel_carries_the_built_in_backends_and_no_tests(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        carried = set(archive.namelist())
    data = [path for path in committed_files() if top_folder(path) in PACKAGES]
    assert {path.relative_to(ROOT).as_posix() for path in data} <= carried
    assert {name.partition("/")[0] for name in carried if "dist-info" not in name} == set(PACKAGES)
