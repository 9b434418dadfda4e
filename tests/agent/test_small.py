"""The agent is small, explains itself, and can be installed as a service."""

import configparser
import subprocess
import sys
from pathlib import Path

from agent.settings import AgentSettings, explained

ROOT = Path(__file__).parents[2]


def test_every_setting_is_explained_by_the_command_and_by_the_guide():
    command = Path(sys.executable).with_name("nodesmith")
    shown = subprocess.run([command, "agent", "--help"], capture_output=True, text=True, check=True).stdout
    guide = (ROOT / "docs/operations.md").read_text()
    for name, field in AgentSettings.model_fields.items():
        assert field.description, name
        assert f"NODESMITH_AGENT_{name.upper()} (" in shown
        assert field.description in " ".join(shown.split())
        assert f"`NODESMITH_AGENT_{name.upper()}`" in guide, name
    assert len(explained()) == len(AgentSettings.model_fields)


def test_the_unit_starts_what_there_is_and_leaves_backends_alone():
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(ROOT / "deploy/nodesmith-agent.service")
    service = unit["Service"]
    assert service["ExecStart"].endswith("bin/nodesmith agent")
    assert service["KillMode"] == "process"
    assert service["User"] != "root"
    assert "NODESMITH_AGENT_HOME" in service["Environment"]
