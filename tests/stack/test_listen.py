"""`up --listen`: another machine joins with one command over TLS, and reaches nothing else."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from nodesmith.runtime.tls_trust import trusting
from tests.stack.commands import NODESMITH, Machine
from tests.stack.namespace import OtherMachine, other_machine
from tests.stack.waiting import until

pytestmark = pytest.mark.private_stack

PROBE = """
import socket, sys
for port in map(int, sys.argv[2:]):
    with socket.socket() as probe:
        probe.settimeout(5)
        if probe.connect_ex((sys.argv[1], port)) == 0: print(port)
"""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[OtherMachine]:
    with other_machine() as machine:
        yield machine


@pytest.fixture(scope="module")
def control(elsewhere: OtherMachine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("listen") / "home")
    machine.up("--listen", elsewhere.our_address, agents=1)
    yield machine
    machine.down()


@pytest.fixture(scope="module")
def joined(control: Machine, elsewhere: OtherMachine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run the command of `nodes invite` in the other namespace; return the home of its agent."""
    line = asked(control, "nodes", "invite", "--approve", "--label", "rack=7")["command"].split()
    home = tmp_path_factory.mktemp("far") / "node"
    command = elsewhere.command(NODESMITH, *line[1:], "--name", "far", "--home", str(home))
    with (home.parent / "far.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=control.full_environment())
        try:
            until(lambda: status_of(control, "far") == "healthy")
            yield home
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def asked(control: Machine, *arguments: str) -> dict[str, Any]:
    done = control.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def status_of(control: Machine, name: str) -> str:
    nodes: list[dict[str, str]] = json.loads(control.run("nodes", "ls", "--json").stdout)
    return next((node["status"] for node in nodes if node["name"] == name), "")


def test_a_machine_in_another_namespace_joins_and_installs(control: Machine, joined: Path) -> None:
    done = control.run("backends", "install", "echo", "--on", "far", "--watch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (joined / "backends").iterdir() if path.name == "echo"] == ["echo"]
    assert asked(control, "nodes", "show", "far")["labels"]["rack"] == "7"


def test_agents_on_loopback_keep_working(control: Machine) -> None:
    done = control.run("backends", "install", "echo", "--on", "agent-1", "--watch")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_invite_is_on_no_command_line_once_the_agent_runs(control: Machine, joined: Path) -> None:
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert any("nodesmith.agent.main" in line for line in lines)
    assert not any("nsinv-" in line for line in lines)


def test_other_machines_reach_api_web_ui_nats_and_gateway_only(control: Machine, elsewhere: OtherMachine) -> None:
    """Neither Temporal itself nor PostgreSQL."""
    ports = [str(control.base + offset) for offset in range(10)]
    probe = elsewhere.command(sys.executable, "-c", PROBE, elsewhere.our_address, *ports)
    opened = subprocess.run(probe, capture_output=True, text=True, check=True).stdout.split()
    assert opened == [str(control.base + offset) for offset in (0, 2, 3, 7)]


def test_other_machines_get_the_temporal_web_ui_over_tls_and_behind_the_sign_in(
    control: Machine, elsewhere: OtherMachine
) -> None:
    connection = control.home.connection()
    assert connection is not None
    context = trusting(control.home.certificates / "ca.pem")
    url = f"https://{elsewhere.our_address}:{control.base + 2}/api/v1/namespaces"
    with httpx2.Client(verify=context, trust_env=False) as client:
        assert client.get(url).status_code == 401
        answer = client.get(url, headers={"Authorization": f"Bearer {connection.token()}"})
    assert "namespaces" in answer.json()


def test_plain_http_is_refused_on_the_public_address(control: Machine, elsewhere: OtherMachine) -> None:
    plain = control.run("nodes", "ls", "--url", f"http://{elsewhere.our_address}:{control.base}", "--token", "any")
    assert plain.returncode == 3


def test_the_command_line_trusts_the_ca_of_its_home(control: Machine, elsewhere: OtherMachine) -> None:
    connection = control.home.connection()
    assert connection is not None
    url = f"https://{elsewhere.our_address}:{control.base}"
    assert control.run("nodes", "ls", "--url", url, "--token", connection.token()).returncode == 0


@pytest.mark.parametrize(
    ("option", "words"), [("--ca-sha256", "is not the control plane of this invite"), ("--trust", "of its root key is")]
)
def test_an_invite_for_another_control_plane_sends_nothing_there(
    control: Machine, tmp_path: Path, option: str, words: str
) -> None:
    """A wrong fingerprint: the server does not receive the invite."""
    line = asked(control, "nodes", "invite")["command"].split()
    line[line.index(option) + 1] = "0" * 64
    done = control.run(*line[1:], "--home", str(tmp_path / "agent"), "--no-run", "--name", "misled")
    assert done.returncode == 1
    assert words in done.stderr
    assert status_of(control, "misled") == ""


def test_a_token_of_the_command_line_has_its_role_until_it_is_revoked(control: Machine) -> None:
    made = asked(control, "tokens", "create", "night-shift", "--role", "operator", "--ttl", "12h", "--reason", "duty")
    allowed = control.run("ops", "ls", "--token", made["token"])
    assert allowed.returncode == 0, allowed.stderr
    refused = control.run("tokens", "ls", "--token", made["token"])
    assert refused.returncode == 1
    assert "night-shift has the role operator; this needs admin." in refused.stderr
    assert control.run("tokens", "revoke", "night-shift").stdout == "night-shift (operator) is revoked.\n"
    assert "A valid token is needed." in control.run("ops", "ls", "--token", made["token"]).stderr
    entries: list[dict[str, str]] = json.loads(control.run("audit", "--target", "night-shift", "--json").stdout)
    assert [(entry["actor"], entry["action"], entry["reason"]) for entry in entries] == [
        ("admin", "tokens.remove", ""),
        ("admin", "tokens.create", "duty"),
    ]


def test_many_nodes_can_be_simulated_over_tls(control: Machine) -> None:
    command = [NODESMITH, "simulate", "--nodes", "3", "--home", str(control.folder)]
    simulated = subprocess.Popen(command, stdout=subprocess.PIPE, env=control.full_environment())
    try:
        until(lambda: status_of(control, "sim-3") == "healthy")
    finally:
        simulated.send_signal(signal.SIGTERM)
        simulated.communicate(timeout=30)
