import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from nodesmith.cli.main import COMMANDS, make_app

BUILT_ELSEWHERE = {"demo"}


def test_help_names_every_command_without_importing_any() -> None:
    """What makes `nodesmith --help` quick: nothing heavy is imported to print it."""
    script = (
        "import sys\nfrom nodesmith.cli.main import make_app\n"
        "try: make_app()(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pydantic', 'httpx2', 'rich', 'temporalio', 'sqlalchemy', 'nats', 'fastapi'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "heavy: []" in done.stdout
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    assert "...\n" not in done.stdout.partition("Commands:")[2], "a summary does not fit its line"


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - BUILT_ELSEWHERE))
def test_every_command_has_help(name: str) -> None:
    shown = CliRunner().invoke(make_app(), [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Usage: " in shown.output


@pytest.mark.parametrize(
    "command",
    [
        *(
            "nodes ls",
            "nodes show",
            "nodes approve",
            "nodes label",
            "nodes inventory",
            "backends ls",
            "backends install",
        ),
        *("tokens ls", "tokens create", "tokens revoke", "audit", "sessions link"),
        *("ops ls", "ops show", "ops watch", "ops cancel", "ops retry", "ops dismiss", "ops history", "ops pending"),
        *("backends upgrade", "backends rollback", "backends rm", "hold", "release"),
        *(f"batches {each}" for each in ("ls", "show", "watch", "pause", "resume", "cancel", "retry")),
    ],
)
def test_every_client_command_has_json_and_url_options(command: str) -> None:
    shown = CliRunner().invoke(make_app(), [*command.split(), "--help"])
    assert all(option in shown.output for option in ("--json", "--url", "--token", "--home"))


def test_mistyped_command_suggests_the_right_one() -> None:
    shown = CliRunner().invoke(make_app(), ["nods"])
    assert shown.exit_code == 2
    assert "Did you mean 'nodes'" in shown.output


def test_no_placeholder_hides_a_real_command() -> None:
    listed = get_group(make_app()).commands
    assert set(listed) == set(COMMANDS)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = "from nodesmith.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def test_a_failure_is_one_sentence_and_a_remedy_on_stderr() -> None:
    done = run("nodes", "ls", NODESMITH_URL="http://127.0.0.1:9", NODESMITH_TOKEN="t")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "error: Nothing answers at http://127.0.0.1:9.\n  Start Nodesmith with `nodesmith up` (or `make run`).\n"
    )


def test_a_failure_is_json_when_json_was_asked_for() -> None:
    done = run("nodes", "ls", "--json", NODESMITH_URL="http://127.0.0.1:9", NODESMITH_TOKEN="t")
    assert done.returncode == 3
    assert done.stderr.startswith('{"error": {"code": "unreachable"')


@pytest.mark.parametrize("command", [("up",), ("up", "--detach"), ("status",), ("down",), ("nodes", "ls")])
def test_home_that_is_not_a_folder_is_reported_in_a_sentence(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "file").touch()
    done = run(*command, "--home", str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert str(tmp_path / "file") in done.stderr


def test_down_reports_the_stopped_pid_as_json(tmp_path: Path) -> None:
    done = run("down", "--json", "--home", str(tmp_path))
    assert (done.returncode, json.loads(done.stdout)) == (0, {"home": str(tmp_path), "stopped": None})


def test_a_damaged_file_of_the_home_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "connection.json").write_text("{")
    done = run("nodes", "ls", "--home", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {tmp_path}/connection.json is damaged.\n  Remove it: the next `nodesmith up` writes it again.\n"
    )
