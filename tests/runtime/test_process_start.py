"""Start of a process, and its message for invalid settings."""

import os
import subprocess
import sys

import pytest

BY_STACK, BY_COMMAND = (
    "from nodesmith.runtime.process_start import main; main()",
    "from nodesmith.cli.main import main; main()",
)


@pytest.mark.parametrize(
    ("way", "program", "setting"),
    [
        (BY_STACK, "nodesmith.api.main", "NODESMITH_POLICY__REQUEST_TIMEOUT"),
        (BY_COMMAND, "worker", "NODESMITH_POLICY__REQUEST_TIMEOUT"),
        (BY_COMMAND, "agent", "NODESMITH_AGENT_STOP_GRACE"),
    ],
)
def test_invalid_setting_is_reported_in_one_sentence(way: str, program: str, setting: str) -> None:
    command = [sys.executable, "-c", way, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, setting: "soon"})
    assert done.returncode == 1
    assert done.stderr.startswith(f"nodesmith: {setting}: ")
    assert "docs/reference/settings.md" in done.stderr
    assert done.stderr.count("\n") == 1
