"""What the documents name has to exist: settings, commands, targets, files, headings, tests."""

import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from nodesmith.agent.settings import AgentSettings
from nodesmith.cli.main import COMMANDS, _load
from nodesmith.contracts.temporal.operations import Policy
from nodesmith.runtime.gateway_settings import GatewaySettings
from nodesmith.runtime.settings import ControlSettings
from nodesmith.stack.servers import binaries, isolation
from tests.reference.settings import CLIENT

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = (ROOT / "docs" / "reference" / "settings.md").read_text()
FOLDERS = "|".join(sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")))
MADE_LATER = {"deploy/images.env"}
OF_THE_COMMAND_LINE = {name for name, _, _ in CLIENT}
OF_UP = {isolation.SETTING, *(custom.setting for custom in binaries.CUSTOM_PROGRAMS.values())}

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def names_of(settings: type[BaseSettings]) -> set[str]:
    return {f"{settings.model_config['env_prefix']}{field}".upper() for field in settings.model_fields}


LIMITS = {f"NODESMITH_POLICY__{field}".upper() for field in Policy.model_fields}
CONTROL_PLANE = (names_of(ControlSettings) - {"NODESMITH_POLICY"}) | names_of(GatewaySettings)
SETTINGS = CONTROL_PLANE | names_of(AgentSettings) | LIMITS | OF_UP


@each_document
def test_every_setting_that_is_named_exists(document: Path) -> None:
    named = {name for name in re.findall(r"NODESMITH_[A-Z_]+\*?", document.read_text()) if not name.endswith("*")}
    assert {name.rstrip("_") for name in named} <= SETTINGS | OF_THE_COMMAND_LINE


def test_the_guide_names_every_setting() -> None:
    assert set(re.findall(r"NODESMITH_[A-Z_]*[A-Z]", GUIDE)) >= SETTINGS


@each_document
def test_every_command_that_is_named_exists(document: Path) -> None:
    for name, below in re.findall(r"(?<![./-])\bnodesmith ([a-z]+)(?: ([a-z][a-z-]*))?", document.read_text()):
        if name not in COMMANDS:
            pytest.fail(f"nodesmith {name}")
        group = getattr(_load(name), "commands", None)
        assert group is None or not below or below in group, f"nodesmith {name} {below}"


@each_document
def test_every_make_target_that_is_named_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^    )make ([a-z]+)", document.read_text(), re.MULTILINE)) <= targets


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    for target, _, heading in _links(document):
        page = (document.parent / target) if target else document
        assert page.exists(), target
        assert not heading or heading in _headings(page), f"{target}#{heading}"


def _links(document: Path) -> list[tuple[str, str, str]]:
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    return re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", prose)


def _headings(page: Path) -> set[str]:
    """As they are named in links: small letters, hyphens for blanks, no punctuation."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@each_document
def test_every_path_that_is_named_exists(document: Path) -> None:
    named = re.findall(rf"(?:`|\b(?=docs/))((?:{FOLDERS})/[\w./*-]*[\w*])", document.read_text())
    assert [path for path in named if not any(ROOT.glob(path)) and path not in MADE_LATER] == []


@each_document
def test_every_test_that_is_named_exists(document: Path) -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:(?:::|: )(\w+))?", document.read_text()):
        assert (ROOT / path).exists(), path
        assert not name or re.search(rf"def {name}\(", (ROOT / path).read_text()), f"{path}::{name}"


@each_document
def test_every_page_can_be_found_from_the_index(document: Path) -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target, _, _ in _links(index)}
    is_listed_elsewhere = document.parent in (ROOT, ROOT / "docs" / "decisions")
    assert is_listed_elsewhere or document == index or document in linked


def test_the_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
