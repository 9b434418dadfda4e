"""What the documents name has to exist: settings, commands, targets, files."""

import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from agent.settings import AgentSettings
from cli.main import COMMANDS, _load
from contracts.temporal import Policy
from runtime.settings import ControlSettings

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = (ROOT / "docs" / "operations.md").read_text()
OF_THE_COMMAND_LINE = {"NODESMITH_HOME", "NODESMITH_URL", "NODESMITH_TOKEN"}

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def names_of(settings: type[BaseSettings]) -> set[str]:
    return {f"{settings.model_config['env_prefix']}{field}".upper() for field in settings.model_fields}


SETTINGS = names_of(ControlSettings) | names_of(AgentSettings)


@each_document
def test_every_setting_that_is_named_exists(document: Path) -> None:
    named = set(re.findall(r"NODESMITH_[A-Z_]*[A-Z]", document.read_text()))
    assert named <= SETTINGS | OF_THE_COMMAND_LINE


def test_the_guide_names_every_setting() -> None:
    assert set(re.findall(r"NODESMITH_[A-Z_]*[A-Z]", GUIDE)) >= SETTINGS


def test_the_limits_that_the_guide_names_exist() -> None:
    row = next(line for line in GUIDE.splitlines() if line.startswith("| `NODESMITH_POLICY__"))
    named = set(re.findall(r"`([A-Z_]+)`", row))
    assert named
    assert {name.lower() for name in named} <= set(Policy.model_fields)


@each_document
def test_every_command_that_is_named_exists(document: Path) -> None:
    for name, below in re.findall(r"nodesmith ([a-z]+)(?: ([a-z][a-z-]*))?", document.read_text()):
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
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
