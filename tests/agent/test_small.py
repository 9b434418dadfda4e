"""The help text of the settings, and the systemd unit."""

import configparser
import subprocess
import sys
from pathlib import Path

from nodesmith.agent.settings import AgentSettings, explained

ROOT = Path(__file__).parents[2]


def test_every_setting_is_explained_by_the_command_and_by_the_guide():
    command = Path(sys.executable).with_name("nodesmith")
    redacted = subprocess.run([command, "agent", "--help"], capture_output=True, text=True, check=True).stdout
    guide = (ROOT / "docs/reference/settings.md").read_text()
    for name, field in AgentSettings.model_fields.items():
        assert field.description, name
        assert f"NODESMITH_AGENT_{name.upper()} (" in redacted
        assert field.description in " ".join(redacted.split())
        assert f"`NODESMITH_AGENT_{name.upper()}`" in guide, name
    assert len(explained()) == len(AgentSettings.model_fields)


def test_systemd_unit_starts_the_agent_and_leaves_backends_running():
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(ROOT / "deploy/nodesmith-agent.service")
    service = unit["Service"]
    assert service["ExecStart"].endswith("bin/nodesmith agent")
    assert service["KillMode"] == "process"
    assert service["User"] != "root"
    assert "NODESMITH_AGENT_HOME" in service["Environment"]
    assert (service["ProtectSystem"], service["NoNewPrivileges"]) == ("strict", "true")
    assert service["ReadWritePaths"] == "/var/lib/nodesmith"
    assert not service["CapabilityBoundingSet"]
    assert "PrivateDevices" not in service, "backends use GPUs"
