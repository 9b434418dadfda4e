"""How a process begins, and what it says when it cannot."""

import os
import subprocess
import sys

import pytest

BY_STACK, BY_COMMAND = "from runtime.begin import main; main()", "from cli.main import main; main()"


@pytest.mark.parametrize(
    ("way", "program", "setting"),
    [
        (BY_STACK, "api.main", "NODESMITH_POLICY__REQUEST_TIMEOUT"),
        (BY_COMMAND, "worker", "NODESMITH_POLICY__REQUEST_TIMEOUT"),
        (BY_COMMAND, "agent", "NODESMITH_AGENT_STOP_GRACE"),
    ],
)
def test_a_setting_that_cannot_be_read_is_told_in_a_sentence(way: str, program: str, setting: str) -> None:
    command = [sys.executable, "-c", way, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, setting: "soon"})
    assert done.returncode == 1
    assert done.stderr.startswith(f"nodesmith: {setting}: ")
    assert "docs/operations.md" in done.stderr
    assert done.stderr.count("\n") == 1
