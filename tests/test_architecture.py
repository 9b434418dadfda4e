"""Checks that the import linter cannot make, and a test that the linter detects violations."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import module_map
from tests.module_map import PRODUCT

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE = ROOT / "src" / "nodesmith"
PACKAGES = PRODUCT
"""the product's folders: `nodesmith.<folder>` is a symbolic link to each"""
BESIDE = {"tests", "benchmarks", "src"}
"""folders with Python code outside the product, and the folder of the symbolic links"""
LONGEST_MODULE = 350


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


def test_every_folder_of_the_product_is_linked_type_checked_and_shipped_by_one_name() -> None:
    assert all((PACKAGE / name).resolve() == ROOT / name for name in PACKAGES)
    assert "src/nodesmith" in PROJECT["tool"]["mypy"]["files"]
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/nodesmith"]
    assert PROJECT["tool"]["importlinter"]["root_package"] == "nodesmith"


def test_ruff_bans_the_folders_as_import_names() -> None:
    assert set(PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == set(PACKAGES)


def test_a_folder_is_not_importable_by_its_own_name_outside_of_the_clone(tmp_path: Path) -> None:
    for name in PACKAGES:
        done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=tmp_path, capture_output=True, check=False)
        assert b"ModuleNotFoundError" in done.stderr, name


RE_EXPORTS = {ROOT / "client" / "__init__.py"}
"""The client is a library for other programs: `nodesmith.client` is its public name, wherever its modules are."""


def test_every_package_marker_is_empty() -> None:
    written = {path for path in sources() if path.name == "__init__.py" and path.read_text()}
    assert written == RE_EXPORTS


def test_no_folder_has_a_catch_all_name() -> None:
    drawers = {"utils", "util", "common", "helpers", "misc"}
    assert not [path for path in sources() if drawers & {path.stem, *path.relative_to(ROOT).parts}]


def test_no_module_of_the_product_is_longer_than_350_lines() -> None:
    modules = [path for path in sources() if top_folder(path) in PACKAGES]
    assert not {path.name: lines for path in modules if (lines := len(path.read_text().splitlines())) > LONGEST_MODULE}


def test_every_test_folder_is_a_package() -> None:
    """Otherwise tests/api would shadow api."""
    folders = {path.parent for path in sources() if top_folder(path) == "tests"}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


# the module map


def test_the_folder_table_names_every_folder_of_the_product_once() -> None:
    assert sorted(set(module_map.table()) & {path.name for path in PACKAGE.iterdir()}) == PACKAGES, module_map.printed()


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_folder_imports_what_the_folder_table_says(folder: str) -> None:
    row = module_map.module_map()[folder]
    assert row.imports <= row.may_import, module_map.printed()


@pytest.mark.parametrize("folder", PACKAGES)
def test_subfolders_that_the_folder_table_names_exist(folder: str) -> None:
    row = module_map.module_map()[folder]
    named = set(re.findall(r"(?<![\w/])(\w+/)", row.contents)) - {f"{each}/" for each in PACKAGES}
    assert named <= set(row.subfolders), module_map.printed()


def test_the_module_map_in_the_architecture_has_every_folder() -> None:
    """The table of CONTRIBUTING.md and the picture are one map."""
    drawn = (
        (ROOT / "docs" / "explanation" / "architecture.md").read_text().partition("## Modules")[2].partition("## ")[0]
    )
    assert set(re.findall(r"\b(\w+)\[", drawn)) == set(PACKAGES), module_map.printed()


# imports


def imported(path: Path) -> set[str]:
    """Return the packages that a module imports: ours with their folder, others by their first name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {".".join(name.split(".")[: 2 if name.startswith("nodesmith.") else 1]) for name in names}


def test_the_domain_needs_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"nodesmith.domain"}
    foreign = {path.name: imported(path) - allowed for path in sources() if top_folder(path) == "domain"}
    assert not {name: names for name, names in foreign.items() if names}


BUILDERS = {"api/assembly.py", "workers/main.py"}
SHARED = ("Nodes", "OperationTable", "Batches", "History", "NodeLifecycle", "InventoryTable", "Lifecycle", "Inventory")


def test_one_place_builds_the_parts_that_api_and_worker_share() -> None:
    """The processes take them from control/graph.py."""
    assert not {name: called(ROOT / name) & set(SHARED) for name in BUILDERS if called(ROOT / name) & set(SHARED)}
    assert set(SHARED) <= called(ROOT / "control" / "graph.py")


def test_the_launcher_of_children_needs_the_standard_library_only() -> None:
    """It runs between fork and exec, without our packages on its path."""
    assert imported(ROOT / "stack" / "processes" / "launch.py") <= sys.stdlib_module_names


@pytest.mark.parametrize("module", ["nodesmith.agent.main", "nodesmith.agent.simulator.simulation"])
def test_agent_imports_nothing_of_the_control_plane(module: str) -> None:
    script = f"import sys, {module}; print({{'temporalio', 'sqlalchemy', 'psycopg', 'fastapi'}} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.strip() == "set()"


def test_client_imports_nothing_of_the_control_plane() -> None:
    """It is a library for other programs, which start without the drivers of our servers."""
    foreign = "{'temporalio', 'sqlalchemy', 'psycopg', 'fastapi', 'nats', 'typer'}"
    script = f"import sys, nodesmith.client; print({foreign} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.strip() == "set()"


def test_the_command_line_sends_no_requests_by_hand() -> None:
    """It uses `nodesmith.client`; the demo also asks the Temporal Web UI, which is not our API."""
    senders = {"httpx2", "urllib.request", "http.client", "requests"}
    modules = {path.name for path in sources() if top_folder(path) == "cli" and senders & _modules(path)}
    assert modules == {"tour.py"}


def _modules(path: Path) -> set[str]:
    """Return the modules that a module imports, by their full names."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


PRINTS = {"print", "typer.echo", "typer.secho", "click.echo", "Console", "sys.stdout.write", "sys.stderr.write"}


def called(path: Path) -> set[str]:
    calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {ast.unparse(function) for function in calls}


def test_the_command_line_prints_in_one_place() -> None:
    """That module makes the text of nodes and backends safe for a terminal."""
    modules = [path for path in sources() if top_folder(path) == "cli" and path.name != "terminal.py"]
    assert not {path.name: called(path) & PRINTS for path in modules if called(path) & PRINTS}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run([linter], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copy_of_the_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("sources")
    for path in [ROOT / "pyproject.toml", *(path for path in sources() if top_folder(path) in PACKAGES)]:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copytree(ROOT / "src", copy / "src", symlinks=True)
    return copy


def test_the_sources_keep_the_import_contracts(copy_of_the_sources: Path) -> None:
    done = lint_imports(copy_of_the_sources)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "bad_import", "contract"),
    [
        ("domain", "import nodesmith.contracts.words", "Imports go down only"),
        ("contracts", "import nodesmith.store.database", "Imports go down only"),
        ("store", "import nodesmith.bus.connection", "Imports go down only"),
        ("services", "import nodesmith.activities", "Imports go down only"),
        ("stack", "import nodesmith.cli.main", "Imports go down only"),
        ("control", "import nodesmith.api.app", "Imports go down only"),
        ("workflows", "import nodesmith.control.graph", "Imports go down only"),
        ("agent", "import nodesmith.control.graph", "The agent is another machine"),
        ("services", "import nats", "Orchestration, effects and use cases know no driver"),
        ("workflows", "import sqlalchemy", "Orchestration, effects and use cases know no driver"),
        ("client", "import nodesmith.stack.home", "Imports go down only"),
        ("client", "import nats", "The client needs nothing of the control plane"),
        ("services", "import nodesmith.contracts.http.operations", "HTTP shapes are made in the API"),
        ("store", "import nodesmith.contracts.http.nodes", "HTTP shapes are made in the API"),
        ("agent", "import temporalio.client", "The agent is another machine"),
        ("agent", "import nodesmith.contracts.temporal.operations", "The agent is another machine"),
        ("cli", "import nodesmith.store.database", "The command line is a client"),
    ],
)
def test_upward_import_violates_its_contract(
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


# committed and shipped files

# The machine configures the package registry. (A gallery's image reference and its default host are data.)
# Split into parts, so that this file does not contain the forbidden names itself.
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
    assert {f"nodesmith/{path.relative_to(ROOT).as_posix()}" for path in data} <= carried
    assert {name.partition("/")[0] for name in carried if "dist-info" not in name} == {"nodesmith"}
